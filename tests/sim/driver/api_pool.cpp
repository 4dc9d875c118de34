// SPDX-License-Identifier: Apache-2.0
// Exported: stream-ordered allocation. An allocation is an operation of its stream: using the
// memory elsewhere before that operation completed is a fault, even if the stream was idle.
#include "driver/entry.h"
#include "driver/exported.h"

namespace cupool::sim {

namespace {

CUresult known(CUmemoryPool handle, Pool** pool) {
  World& w = world();
  auto* const candidate = reinterpret_cast<Pool*>(handle);
  if (!w.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (handle == nullptr || w.pools.count(candidate) == 0 || candidate->destroyed) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *pool = candidate;
  return CUDA_SUCCESS;
}

CUresult create(Entry& in, CUmemoryPool* handle, const CUmemPoolProps* props) {
  World& w = world();
  Device* device = nullptr;
  if (!w.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (handle == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (in.device(props->location.id, &device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE && w.settings.pool_ipc == PoolIpc::no) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const CUresult result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  auto* const pool = new Pool(*device, *props);
  w.pools.insert(pool);
  *handle = pool->handle();
  in.costs(81000);
  return CUDA_SUCCESS;
}

CUresult destroy(CUmemoryPool handle) {
  World& w = world();
  Pool* pool = nullptr;
  const CUresult result = known(handle, &pool);
  if (result != CUDA_SUCCESS) return result;
  Device& device = pool->device();
  if (pool == device.default_pool) return CUDA_ERROR_INVALID_VALUE;
  if (device.current_pool == pool) device.current_pool = device.default_pool;
  pool->destroyed = true;
  w.collect(pool);
  return CUDA_SUCCESS;
}

CUresult trim(Entry& in, CUmemoryPool handle, size_t keep) {
  Pool* pool = nullptr;
  CUresult result = known(handle, &pool);
  if (result == CUDA_SUCCESS) result = world().captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  // Takes only what a wait of the host has covered: a query that found the work complete is none
  // (measured, driver 580).
  in.costs(1000 + pool->trim(keep) / 1024);
  return CUDA_SUCCESS;
}

// Reading and writing a pool's attributes is potentially unsafe, too: in a global-mode capture it
// is refused and invalidates it (measured with an H200).
CUresult set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Pool* pool = nullptr;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = known(handle, &pool);
  if (result == CUDA_SUCCESS) result = world().captures.refuse_unsafe();
  return result == CUDA_SUCCESS ? pool->set_attribute(attribute, value) : result;
}

CUresult get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Pool* pool = nullptr;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = known(handle, &pool);
  if (result == CUDA_SUCCESS) result = world().captures.refuse_unsafe();
  return result == CUDA_SUCCESS ? pool->get_attribute(attribute, value) : result;
}

CUresult set_access(Entry& in, CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  Pool* pool = nullptr;
  const CUresult result = known(handle, &pool);
  if (result != CUDA_SUCCESS) return result;
  if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    Device* device = nullptr;
    if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (in.device(map[i].location.id, &device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
    // cuda.h: the pool's own device always has access.
    if (device == &pool->device() && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (device != &pool->device() && !world().settings.peers) return CUDA_ERROR_INVALID_DEVICE;
  }
  for (size_t i = 0; i < count; ++i) pool->set_access(map[i].location.id, map[i].flags);
  return CUDA_SUCCESS;
}

CUresult get_access(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  Pool* pool = nullptr;
  const CUresult result = known(handle, &pool);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = pool->access(location->id);
  return CUDA_SUCCESS;
}

CUresult pool_of(Entry& in, CUmemoryPool* handle, CUdevice ordinal, bool current) {
  Device* device = nullptr;
  if (!world().settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  *handle = (current ? device->current_pool : device->default_pool)->handle();
  return CUDA_SUCCESS;
}

CUresult set_pool_of(Entry& in, CUdevice ordinal, CUmemoryPool handle) {
  Device* device = nullptr;
  Pool* pool = nullptr;
  CUresult result = known(handle, &pool);
  if (result == CUDA_SUCCESS) result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  if (&pool->device() != device) return CUDA_ERROR_INVALID_VALUE;
  device->current_pool = pool;
  return CUDA_SUCCESS;
}

Allocation& enter(Pool& pool, uintptr_t address, size_t bytes) {
  Allocation allocation;
  allocation.base = address;
  allocation.size = bytes;
  allocation.origin = Origin::pool;
  allocation.device = pool.device().ordinal;
  allocation.pool = &pool;
  return world().addresses.add(allocation);
}

CUresult allocate_captured(CUdeviceptr* out, size_t bytes, Stream& stream) {
  World& w = world();
  if (!stream.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Pool& pool = *stream.context->device->graph_pool;
  const Pool::Placement placement = pool.allocate(bytes, stream);
  if (placement.address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const unsigned long long id = enter(pool, placement.address, bytes).id;
  stream.capture->graph->allocated->blocks.push_back({placement.address, id});
  *out = placement.address;
  OpSpec spec;
  spec.name = "graph allocation";
  return w.captures.add(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, std::move(spec));
}

CUresult allocate(Entry& in, CUdeviceptr* out, size_t bytes, Pool* pool, CUstream handle) {
  World& w = world();
  Stream* stream = nullptr;
  if (!w.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  // cuda.h, cuMemAllocAsync: a size of 0 returns success and a null pointer.
  if (bytes == 0) return *out = 0, CUDA_SUCCESS;
  if (stream->capture != nullptr) return allocate_captured(out, bytes, *stream);
  result = w.captures.refuse_legacy(*stream);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  if (pool == nullptr) pool = stream->context->device->current_pool;
  if (pool->imported()) return CUDA_ERROR_INVALID_VALUE;  // cuda.h: only the exporter allocates
  const Pool::Placement placement = pool->allocate(bytes, *stream);
  in.costs(300 + placement.grown_bytes / 1024);
  if (placement.address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  OpSpec spec;
  spec.name = "pool allocation";
  const OpRef op = submit(*stream, std::move(spec), {placement.after});
  enter(*pool, placement.address, bytes);
  w.judge.pool_allocated(placement.address, bytes, op->at);
  *out = placement.address;
  static bool any_before = false;  // under the world's lock
  if (!any_before) in.takes(w.settings.first_pool_ms);
  any_before = true;
  return stream->context->sticky;
}

CUresult allocate_from(Entry& in, CUdeviceptr* out, size_t bytes, CUmemoryPool handle,
                       CUstream stream) {
  Pool* pool = nullptr;
  const CUresult result = known(handle, &pool);
  return result == CUDA_SUCCESS ? allocate(in, out, bytes, pool, stream) : result;
}

CUresult release_captured(CUdeviceptr address, Stream& stream) {
  World& w = world();
  const Allocation* found = w.addresses.starting_at(address);
  // Memory that was allocated outside the graph cannot be freed inside; the capture survives.
  if (found == nullptr || found->pool != stream.context->device->graph_pool) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  OpSpec spec;
  spec.name = "graph free";
  return w.captures.add(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, std::move(spec));
}

// Legacy memory can be freed in stream order as well; it does not wait (measured).
CUresult release_legacy(const Allocation& found, Stream& stream) {
  Context* const owner = found.context;
  const uintptr_t base = found.base;
  const size_t bytes = found.size;
  world().addresses.erase(base);
  OpSpec spec;
  spec.name = "legacy free in stream order";
  spec.effect = [owner, base, bytes] {
    // What came before has executed, though the host need not know: the next owner is after it.
    world().judge.forget(base, bytes);
    owner->heap.release(*owner->device, base, bytes);
    return CUDA_SUCCESS;
  };
  submit(stream, std::move(spec));
  return stream.context->sticky;
}

CUresult release(Entry& in, CUdeviceptr address, CUstream handle) {
  World& w = world();
  Stream* stream = nullptr;
  if (!w.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) {
    return address == 0 ? CUDA_SUCCESS : release_captured(address, *stream);
  }
  result = w.captures.refuse_legacy(*stream);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS || address == 0) return result;
  Allocation* const found = w.addresses.starting_at(address);
  if (found == nullptr || found->on_host()) return CUDA_ERROR_INVALID_VALUE;
  in.costs(300);
  if (found->origin == Origin::legacy) return release_legacy(*found, *stream);
  if (found->pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (found->origin == Origin::imported) return close_exported(*found);
  Pool* const pool = found->pool;
  const size_t bytes = found->size;
  OpSpec spec;
  spec.name = "pool free";
  const OpRef op = submit(*stream, std::move(spec));
  w.judge.pool_freed(address, bytes, op->clock, op->at);
  w.addresses.erase(address);
  pool->release(address, bytes, op);
  w.collect(pool);
  return stream->context->sticky;
}

}  // namespace

SIM_DEFINE(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps* props),
           create(in, pool, props))
SIM_DEFINE(cuMemPoolDestroy, (CUmemoryPool pool), destroy(pool))
SIM_DEFINE(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), trim(in, pool, keep))
SIM_DEFINE(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value),
           set_attribute(pool, attribute, value))
SIM_DEFINE(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value),
           get_attribute(pool, attribute, value))
SIM_DEFINE(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc* map, size_t count),
           set_access(in, pool, map, count))
SIM_DEFINE(cuMemPoolGetAccess,
           (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation* location),
           get_access(flags, pool, location))
SIM_DEFINE(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device),
           pool_of(in, pool, device, false))
SIM_DEFINE(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device),
           pool_of(in, pool, device, true))
SIM_DEFINE(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), set_pool_of(in, device, pool))
SIM_TWINS(cuMemAllocAsync, cuMemAllocAsync_ptsz,
          (CUdeviceptr * address, size_t bytes, CUstream stream),
          allocate(in, address, bytes, nullptr, stream))
SIM_TWINS(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
          (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream),
          allocate_from(in, address, bytes, pool, stream))
SIM_TWINS(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream),
          release(in, address, stream))

}  // namespace cupool::sim
