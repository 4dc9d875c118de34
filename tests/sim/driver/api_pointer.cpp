// SPDX-License-Identifier: Apache-2.0
// Exported: what a pointer is. Pool pointers have no context, no legacy IPC and no RDMA
// (measured).
#include <sys/mman.h>

#include <cstring>

#include "driver/entry.h"
#include "driver/memory_file.h"

namespace cupool::sim {

namespace {

template <typename T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

bool is_pool(const Allocation& a) {
  return a.pool != nullptr;
}

// Memory of graphs has a pool of its own, which the driver does not name (measured).
bool is_graphs(const Allocation& a) {
  return a.pool == a.pool->device().graph_pool;
}

CUresult attribute_of(const Allocation& a, CUpointer_attribute attribute, uintptr_t address,
                      void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put<CUcontext>(data, a.context == nullptr ? nullptr : a.context->handle());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(data, a.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!a.on_host() && a.origin != Origin::managed) return CUDA_ERROR_INVALID_VALUE;
      return put<void*>(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<unsigned>(data, a.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<unsigned long long>(data, a.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<unsigned>(data, a.origin == Origin::managed ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, a.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned>(data, a.origin == Origin::legacy ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put<CUdeviceptr>(data, a.base);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put<size_t>(data, a.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<unsigned long long>(
          data, is_pool(a) ? static_cast<unsigned>(a.pool->props().handleTypes) : 0u);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<unsigned>(data, a.origin == Origin::legacy ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put<unsigned>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put<CUmemoryPool>(data, is_pool(a) && !is_graphs(a) ? a.pool->handle() : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<unsigned long long>(data, a.id);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Needs no context, and works in one that has failed (measured with an H200).
CUresult get(Entry& in, void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* found = world().addresses.find(address);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  in.costs(95);
  return attribute_of(*found, attribute, address, data);
}

size_t width_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    default:
      return 4;
  }
}

// cuda.h, cuPointerGetAttributes: an unknown pointer is no error, its attributes read zero (the
// device ordinal reads -2, CU_DEVICE_INVALID).
CUresult get_many(unsigned count, CUpointer_attribute* attributes, void** data,
                  CUdeviceptr address) {
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* found = world().addresses.find(address);
  for (unsigned i = 0; i < count; ++i) {
    std::memset(data[i], 0, width_of(attributes[i]));
    if (found != nullptr) {
      attribute_of(*found, attributes[i], address, data[i]);
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      put<int>(data[i], CU_DEVICE_INVALID);
    }
  }
  return CUDA_SUCCESS;
}

CUresult set(Entry& in, const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  Allocation* const found = world().addresses.find(address);
  if (value == nullptr || found == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->sync_memops = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}

// A file that stands for the memory: who would use it is no part of the device. Measured: memory of
// pools has one as well.
CUresult export_range(Entry& in, int* file, CUdeviceptr address, size_t bytes, int type,
                      unsigned long long flags) {
  constexpr size_t kPage = 4096;
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const Allocation* const found = world().addresses.find(address);
  if (file == nullptr || found == nullptr || found->on_host() || bytes == 0 || flags != 0 ||
      type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || address % kPage != 0 || bytes % kPage != 0 ||
      address + bytes > found->base + found->size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *file = memory_file("cupool-sim-dma-buf");
  return *file < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

}  // namespace

SIM_DEFINE(cuMemGetHandleForAddressRange,
           (void* handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
            unsigned long long flags),
           export_range(in, static_cast<int*>(handle), address, bytes, type, flags))
SIM_DEFINE(cuPointerGetAttribute, (void* data, CUpointer_attribute attribute, CUdeviceptr address),
           get(in, data, attribute, address))
SIM_DEFINE(cuPointerGetAttributes,
           (unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address),
           get_many(count, attributes, data, address))
SIM_DEFINE(cuPointerSetAttribute,
           (const void* value, CUpointer_attribute attribute, CUdeviceptr address),
           set(in, value, attribute, address))

}  // namespace cupool::sim
