// SPDX-License-Identifier: Apache-2.0
// Exported: the copy family. The synchronous forms run on the default stream, which is where a
// capture of a blocking stream refuses them; other captures let them pass (measured).
#include "driver/copy.h"

namespace cupool::sim {

namespace {

uintptr_t address_of(const void* p) {
  return reinterpret_cast<uintptr_t>(p);
}

CUresult linear(Entry& in, CUstream handle, Towards towards, uintptr_t to, uintptr_t from,
                size_t bytes) {
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS && towards == Towards::host_waits && stream->capture != nullptr) {
    return world().captures.refuse_on(*stream);
  }
  if (result != CUDA_SUCCESS) return result;
  return copy(in, *stream, towards, Box{to, bytes, 1}, Box{from, bytes, 1}, Extent{bytes, 1, 1});
}

CUresult sync(Entry& in, uintptr_t to, uintptr_t from, size_t bytes) {
  return linear(in, nullptr, Towards::host_waits, to, from, bytes);
}

CUresult async(Entry& in, CUstream stream, uintptr_t to, uintptr_t from, size_t bytes) {
  return linear(in, stream, Towards::host_goes_on, to, from, bytes);
}

CUresult boxed(Entry& in, CUstream handle, Towards towards, const Box& to, const Box& from,
               const Extent& extent) {
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS && towards == Towards::host_waits && stream->capture != nullptr) {
    return world().captures.refuse_on(*stream);
  }
  return result == CUDA_SUCCESS ? copy(in, *stream, towards, to, from, extent) : result;
}

CUresult copy_2d(Entry& in, CUstream stream, Towards towards, const CUDA_MEMCPY2D* c) {
  Box to;
  Box from;
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Extent extent{c->WidthInBytes, c->Height, 1};
  const Side source{c->srcMemoryType, c->srcHost,  c->srcDevice,
                    c->srcArray,      c->srcPitch, 0,
                    c->srcXInBytes,   c->srcY,     0};
  const Side target{c->dstMemoryType, c->dstHost,  c->dstDevice,
                    c->dstArray,      c->dstPitch, 0,
                    c->dstXInBytes,   c->dstY,     0};
  if (!resolve(source, extent, &from) || !resolve(target, extent, &to)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return boxed(in, stream, towards, to, from, extent);
}

// Of CUDA_MEMCPY3D, or with contexts that say nothing new: CUDA_MEMCPY3D_PEER.
template <typename Description>
CUresult copy_3d(Entry& in, CUstream stream, Towards towards, const Description* c) {
  Box to;
  Box from;
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Extent extent{c->WidthInBytes, c->Height, c->Depth};
  const Side source{c->srcMemoryType, c->srcHost,     c->srcDevice, c->srcArray, c->srcPitch,
                    c->srcHeight,     c->srcXInBytes, c->srcY,      c->srcZ};
  const Side target{c->dstMemoryType, c->dstHost,     c->dstDevice, c->dstArray, c->dstPitch,
                    c->dstHeight,     c->dstXInBytes, c->dstY,      c->dstZ};
  if (!resolve(source, extent, &from) || !resolve(target, extent, &to)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return boxed(in, stream, towards, to, from, extent);
}

}  // namespace

SIM_TWINS(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void* from, size_t bytes),
          sync(in, to, address_of(from), bytes))
SIM_TWINS(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void* to, CUdeviceptr from, size_t bytes),
          sync(in, address_of(to), from, bytes))
SIM_TWINS(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
          sync(in, to, from, bytes))
SIM_TWINS(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
          sync(in, to, from, bytes))
SIM_TWINS(cuMemcpyPeer, cuMemcpyPeer_ptds,
          (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes),
          sync(in, to, from, bytes))
SIM_TWINS(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
          (CUdeviceptr to, const void* from, size_t bytes, CUstream stream),
          async(in, stream, to, address_of(from), bytes))
SIM_TWINS(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
          (void* to, CUdeviceptr from, size_t bytes, CUstream stream),
          async(in, stream, address_of(to), from, bytes))
SIM_TWINS(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
          (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          async(in, stream, to, from, bytes))
SIM_TWINS(cuMemcpyAsync, cuMemcpyAsync_ptsz,
          (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          async(in, stream, to, from, bytes))
SIM_TWINS(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
          (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream),
          async(in, stream, to, from, bytes))
SIM_TWINS(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D* c),
          copy_2d(in, nullptr, Towards::host_waits, c))
SIM_TWINS(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D* c),
          copy_2d(in, nullptr, Towards::host_waits, c))
SIM_TWINS(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D* c, CUstream stream),
          copy_2d(in, stream, Towards::host_goes_on, c))
SIM_TWINS(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D* c),
          copy_3d(in, nullptr, Towards::host_waits, c))
SIM_TWINS(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, (const CUDA_MEMCPY3D* c, CUstream stream),
          copy_3d(in, stream, Towards::host_goes_on, c))
SIM_TWINS(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D_PEER* c),
          copy_3d(in, nullptr, Towards::host_waits, c))
SIM_TWINS(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz,
          (const CUDA_MEMCPY3D_PEER* c, CUstream stream),
          copy_3d(in, stream, Towards::host_goes_on, c))

}  // namespace cupool::sim
