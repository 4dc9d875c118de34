// SPDX-License-Identifier: Apache-2.0
// Exported: copies and fills. The direction is taken from the addresses, as with unified
// addressing; the copy kind is only checked.
#include "runtime/runtime.h"

namespace cupool::sim::runtime {

namespace {

CUdeviceptr address(const void* p) {
  return reinterpret_cast<CUdeviceptr>(const_cast<void*>(p));
}

bool good(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

template <bool pt>
cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (!good(kind)) return cudaErrorInvalidMemcpyDirection;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return call(RT_PICK(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds), address(to), from, bytes);
    case cudaMemcpyDeviceToHost:
      return call(RT_PICK(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds), to, address(from), bytes);
    case cudaMemcpyDeviceToDevice:
      return call(RT_PICK(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds), address(to), address(from),
                  bytes);
    default:
      return call(RT_PICK(cuMemcpy, cuMemcpy_ptds), address(to), address(from), bytes);
  }
}

template <bool pt>
cudaError_t copy_async(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                       cudaStream_t s) {
  if (!good(kind)) return cudaErrorInvalidMemcpyDirection;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return call(RT_PICK(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz), address(to), from,
                  bytes, s);
    case cudaMemcpyDeviceToHost:
      return call(RT_PICK(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz), to, address(from),
                  bytes, s);
    case cudaMemcpyDeviceToDevice:
      return call(RT_PICK(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz), address(to),
                  address(from), bytes, s);
    default:
      return call(RT_PICK(cuMemcpyAsync, cuMemcpyAsync_ptsz), address(to), address(from), bytes, s);
  }
}

CUDA_MEMCPY2D plane(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                    size_t height) {
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = address(from);
  c.srcPitch = from_pitch;
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = address(to);
  c.dstPitch = to_pitch;
  c.WidthInBytes = width;
  c.Height = height;
  return c;
}

template <bool pt>
cudaError_t copy_2d(const CUDA_MEMCPY2D& c) {
  return call(RT_PICK(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds), &c);
}

template <bool pt>
cudaError_t copy_2d_async(const CUDA_MEMCPY2D& c, cudaStream_t s) {
  return call(RT_PICK(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz), &c, s);
}

template <bool pt>
cudaError_t copy_3d(const cudaMemcpy3DParms* p, bool async, cudaStream_t s) {
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) return cudaErrorNotSupported;
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = address(p->srcPtr.ptr);
  c.srcPitch = p->srcPtr.pitch;
  c.srcHeight = p->srcPtr.ysize;
  c.srcXInBytes = p->srcPos.x;
  c.srcY = p->srcPos.y;
  c.srcZ = p->srcPos.z;
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = address(p->dstPtr.ptr);
  c.dstPitch = p->dstPtr.pitch;
  c.dstHeight = p->dstPtr.ysize;
  c.dstXInBytes = p->dstPos.x;
  c.dstY = p->dstPos.y;
  c.dstZ = p->dstPos.z;
  c.WidthInBytes = p->extent.width;
  c.Height = p->extent.height;
  c.Depth = p->extent.depth;
  return async ? call(RT_PICK(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz), &c, s)
               : call(RT_PICK(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds), &c);
}

}  // namespace

RT_TWINS(cudaMemcpy, cudaMemcpy_ptds,
         (void* to, const void* from, size_t bytes, cudaMemcpyKind kind),
         copy<pt>(to, from, bytes, kind))
RT_TWINS(cudaMemcpyAsync, cudaMemcpyAsync_ptsz,
         (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s),
         copy_async<pt>(to, from, bytes, kind, s))
RT_DEFINE(cudaMemcpyPeer, (void* to, int, const void* from, int, size_t bytes),
          call(driver().cuMemcpyPeer, address(to), nullptr, address(from), nullptr, bytes))
RT_DEFINE(cudaMemcpyPeerAsync, (void* to, int, const void* from, int, size_t bytes, cudaStream_t s),
          call(driver().cuMemcpyPeerAsync, address(to), nullptr, address(from), nullptr, bytes, s))
RT_TWINS(cudaMemcpy2D, cudaMemcpy2D_ptds,
         (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
          size_t height, cudaMemcpyKind),
         copy_2d<pt>(plane(to, to_pitch, from, from_pitch, width, height)))
RT_TWINS(cudaMemcpy2DAsync, cudaMemcpy2DAsync_ptsz,
         (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
          size_t height, cudaMemcpyKind, cudaStream_t s),
         copy_2d_async<pt>(plane(to, to_pitch, from, from_pitch, width, height), s))
RT_TWINS(cudaMemcpy3D, cudaMemcpy3D_ptds, (const cudaMemcpy3DParms* p),
         copy_3d<pt>(p, false, nullptr))
RT_TWINS(cudaMemcpy3DAsync, cudaMemcpy3DAsync_ptsz, (const cudaMemcpy3DParms* p, cudaStream_t s),
         copy_3d<pt>(p, true, s))
RT_TWINS(cudaMemset, cudaMemset_ptds, (void* to, int value, size_t count),
         call(RT_PICK(cuMemsetD8_v2, cuMemsetD8_v2_ptds), address(to),
              static_cast<unsigned char>(value), count))
RT_TWINS(cudaMemsetAsync, cudaMemsetAsync_ptsz, (void* to, int value, size_t count, cudaStream_t s),
         call(RT_PICK(cuMemsetD8Async, cuMemsetD8Async_ptsz), address(to),
              static_cast<unsigned char>(value), count, s))
RT_TWINS(cudaMemset2D, cudaMemset2D_ptds,
         (void* to, size_t pitch, int value, size_t width, size_t height),
         call(RT_PICK(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds), address(to), pitch,
              static_cast<unsigned char>(value), width, height))
RT_TWINS(cudaMemset2DAsync, cudaMemset2DAsync_ptsz,
         (void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t s),
         call(RT_PICK(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz), address(to), pitch,
              static_cast<unsigned char>(value), width, height, s))

}  // namespace cupool::sim::runtime
