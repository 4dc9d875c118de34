// SPDX-License-Identifier: Apache-2.0
// Exported: arrays.
#include <initializer_list>

#include "runtime/runtime.h"

namespace cupool::sim::runtime {

namespace {

CUDA_ARRAY3D_DESCRIPTOR describe(const cudaChannelFormatDesc& f, cudaExtent extent,
                                 unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = extent.width;
  d.Height = extent.height;
  d.Depth = extent.depth;
  d.Flags = flags;
  for (const int bits : {f.x, f.y, f.z, f.w}) d.NumChannels += bits != 0 ? 1 : 0;
  const bool floating = f.f == cudaChannelFormatKindFloat;
  const bool is_signed = f.f == cudaChannelFormatKindSigned;
  switch (f.x) {
    case 8:
      d.Format = is_signed ? CU_AD_FORMAT_SIGNED_INT8 : CU_AD_FORMAT_UNSIGNED_INT8;
      break;
    case 16:
      d.Format = floating    ? CU_AD_FORMAT_HALF
                 : is_signed ? CU_AD_FORMAT_SIGNED_INT16
                             : CU_AD_FORMAT_UNSIGNED_INT16;
      break;
    default:
      d.Format = floating    ? CU_AD_FORMAT_FLOAT
                 : is_signed ? CU_AD_FORMAT_SIGNED_INT32
                             : CU_AD_FORMAT_UNSIGNED_INT32;
  }
  return d;
}

cudaError_t create(cudaArray_t* array, const cudaChannelFormatDesc* format, cudaExtent extent,
                   unsigned flags) {
  if (array == nullptr || format == nullptr) return cudaErrorInvalidValue;
  const CUDA_ARRAY3D_DESCRIPTOR d = describe(*format, extent, flags);
  return call(driver().cuArray3DCreate_v2, reinterpret_cast<CUarray*>(array), &d);
}

cudaError_t destroy(cudaArray_t array) {
  if (array == nullptr) return ready();
  return call(driver().cuArrayDestroy, reinterpret_cast<CUarray>(array));
}

CUarray handle(cudaArray_const_t array) {
  return reinterpret_cast<CUarray>(const_cast<cudaArray_t>(array));
}

template <bool pt>
cudaError_t copy_to(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch,
                    size_t width, size_t height) {
  CUDA_MEMCPY2D c{};
  c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  c.dstArray = handle(to);
  c.dstXInBytes = x;
  c.dstY = y;
  c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = reinterpret_cast<CUdeviceptr>(const_cast<void*>(from));
  c.srcPitch = pitch;
  c.WidthInBytes = width;
  c.Height = height;
  return call(RT_PICK(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds), &c);
}

template <bool pt>
cudaError_t copy_from(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y,
                      size_t width, size_t height) {
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  c.srcArray = handle(from);
  c.srcXInBytes = x;
  c.srcY = y;
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = reinterpret_cast<CUdeviceptr>(to);
  c.dstPitch = pitch;
  c.WidthInBytes = width;
  c.Height = height;
  return call(RT_PICK(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds), &c);
}

}  // namespace

RT_DEFINE(cudaMallocArray,
          (cudaArray_t * array, const cudaChannelFormatDesc* format, size_t width, size_t height,
           unsigned int flags),
          create(array, format, cudaExtent{width, height, 0}, flags))
RT_DEFINE(cudaMalloc3DArray,
          (cudaArray_t * array, const cudaChannelFormatDesc* format, cudaExtent extent,
           unsigned int flags),
          create(array, format, extent, flags))
RT_DEFINE(cudaFreeArray, (cudaArray_t array), destroy(array))
RT_TWINS(cudaMemcpy2DToArray, cudaMemcpy2DToArray_ptds,
         (cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch, size_t width,
          size_t height, cudaMemcpyKind),
         copy_to<pt>(to, x, y, from, pitch, width, height))
RT_TWINS(cudaMemcpy2DFromArray, cudaMemcpy2DFromArray_ptds,
         (void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width,
          size_t height, cudaMemcpyKind),
         copy_from<pt>(to, pitch, from, x, y, width, height))

}  // namespace cupool::sim::runtime
