// SPDX-License-Identifier: Apache-2.0
// Exported: batches of copies, in the form of CUDA 12.8 (which tells the index of a copy that
// fails) and in that of 13.0; and single copies with the same attributes (13.2).
#include <cstdint>

#include "driver/array.h"
#include "driver/copy.h"
#include "driver/newer.h"

namespace cupool::sim {

namespace {

bool valid(CUmemcpySrcAccessOrder order, unsigned flags) {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
         (flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) == 0;
}

/// Which copies each set of attributes is for (cuda.h, cuMemcpyBatchAsync).
bool valid_indices(const size_t* indices, size_t attributes, size_t copies) {
  if (attributes == 0 || attributes > copies || indices[0] != 0) return false;
  for (size_t i = 1; i < attributes; ++i) {
    if (indices[i] <= indices[i - 1]) return false;
  }
  return indices[attributes - 1] < copies;
}

CUresult linear(Entry& in, CUstream handle, const CUdeviceptr* to, const CUdeviceptr* from,
                const size_t* bytes, size_t count, const CUmemcpyAttributes* attributes,
                const size_t* indices, size_t attribute_count, size_t* failed) {
  size_t ignored = 0;
  if (failed == nullptr) failed = &ignored;
  *failed = SIZE_MAX;
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (to == nullptr || from == nullptr || bytes == nullptr || attributes == nullptr ||
      indices == nullptr || !valid_indices(indices, attribute_count, count)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<BatchedCopy> copies;
  for (size_t i = 0, which = 0; i < count; ++i) {
    if (which + 1 < attribute_count && indices[which + 1] == i) ++which;
    if (!valid(attributes[which].srcAccessOrder, attributes[which].flags)) {
      *failed = i;
      return CUDA_ERROR_INVALID_VALUE;
    }
    copies.push_back({Box{to[i], bytes[i], 1}, Box{from[i], bytes[i], 1}, Extent{bytes[i], 1, 1},
                      attributes[which].srcAccessOrder});
  }
  return copy_batch(in, *stream, copies, failed);
}

CUresult single(Entry& in, CUstream handle, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                const CUmemcpyAttributes* attributes) {
  const size_t first = 0;
  return linear(in, handle, &to, &from, &bytes, 1, attributes, &first, 1, nullptr);
}

/// Bytes of an element: 1 for memory, for an array its own.
size_t element_bytes(const CUmemcpy3DOperand& operand) {
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return 1;
  const Array* const array = known_array(operand.op.array.array);
  return array == nullptr ? 0 : array->pitch / array->descriptor.Width;
}

bool resolve(const CUmemcpy3DOperand& operand, size_t element, const Extent& extent, Box* box) {
  Side side{};
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const CUoffset3D& offset = operand.op.array.offset;
    side.type = CU_MEMORYTYPE_ARRAY;
    side.array = operand.op.array.array;
    side.x = offset.x * element;
    side.y = offset.y;
    side.z = offset.z;
  } else if (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
    side.type = CU_MEMORYTYPE_UNIFIED;
    side.device = operand.op.ptr.ptr;
    side.pitch = operand.op.ptr.rowLength * element;
    side.height = operand.op.ptr.layerHeight;
  } else {
    return false;
  }
  return resolve(side, extent, box) && extent.rows <= box->height;
}

bool describe(const CUDA_MEMCPY3D_BATCH_OP& operation, BatchedCopy* copy) {
  const CUextent3D& size = operation.extent;
  const bool from_array = operation.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
  const bool to_array = operation.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
  const size_t from_element = element_bytes(operation.src);
  const size_t to_element = element_bytes(operation.dst);
  if (from_array && to_array && from_element != to_element) return false;
  const size_t element = from_array ? from_element : to_element;
  if (element == 0 || size.width == 0 || size.height == 0 || size.depth == 0) return false;
  if (!valid(operation.srcAccessOrder, operation.flags)) return false;
  copy->extent = Extent{size.width * element, size.height, size.depth};
  copy->order = operation.srcAccessOrder;
  return resolve(operation.src, element, copy->extent, &copy->from) &&
         resolve(operation.dst, element, copy->extent, &copy->to);
}

CUresult boxes(Entry& in, CUstream handle, size_t count, const CUDA_MEMCPY3D_BATCH_OP* operations,
               unsigned long long flags, size_t* failed) {
  size_t ignored = 0;
  if (failed == nullptr) failed = &ignored;
  *failed = SIZE_MAX;
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (count == 0 || operations == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<BatchedCopy> copies(count);
  for (size_t i = 0; i < count; ++i) {
    if (describe(operations[i], &copies[i])) continue;
    *failed = i;
    return CUDA_ERROR_INVALID_VALUE;
  }
  return copy_batch(in, *stream, copies, failed);
}

}  // namespace

SIM_TWINS(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz,
          (CUdeviceptr * to, CUdeviceptr* from, size_t* bytes, size_t count,
           CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count, size_t* failed,
           CUstream stream),
          linear(in, stream, to, from, bytes, count, attributes, indices, attribute_count, failed))
SIM_TWINS(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz,
          (CUdeviceptr * to, CUdeviceptr* from, size_t* bytes, size_t count,
           CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
           CUstream stream),
          linear(in, stream, to, from, bytes, count, attributes, indices, attribute_count, nullptr))
SIM_TWINS(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz,
          (size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed,
           unsigned long long flags, CUstream stream),
          boxes(in, stream, count, operations, flags, failed))
SIM_TWINS(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz,
          (size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags,
           CUstream stream),
          boxes(in, stream, count, operations, flags, nullptr))
SIM_TWINS(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz,
          (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes* attributes,
           CUstream stream),
          single(in, stream, to, from, bytes, attributes))
SIM_TWINS(cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz,
          (CUDA_MEMCPY3D_BATCH_OP * operation, unsigned long long flags, CUstream stream),
          boxes(in, stream, 1, operation, flags, nullptr))

}  // namespace cupool::sim
