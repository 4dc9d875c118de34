// SPDX-License-Identifier: Apache-2.0
// Pool memory is allocated and freed on a stream of the calling thread that carries nothing else
// (I2).
#include "engine/backend/pool_backend.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/backend/pool_attributes.h"
#include "engine/backend/stream_stock.h"
#include "engine/block/size_class.h"
#include "util/mutation.h"

namespace cupool::engine {

bool PoolBackend::supported(const cuda::Driver& driver, int device) {
  if (driver.cuMemPoolCreate == nullptr || driver.cuMemAllocFromPoolAsync == nullptr ||
      driver.cuMemFreeAsync == nullptr || driver.cuMemPoolTrimTo == nullptr ||
      driver.cuMemPoolSetAttribute == nullptr || driver.cuMemPoolGetAttribute == nullptr) {
    return false;
  }
  int yes = 0;
  return driver.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device) ==
             CUDA_SUCCESS &&
         yes != 0;
}

CUresult PoolBackend::allocate(StreamSource& context, std::uint64_t capacity,
                               CUdeviceptr* address) {
  return allocate(context, capacity, Growth::leaves_some, address);
}

CUresult PoolBackend::allocate_last(StreamSource& context, std::uint64_t capacity,
                                    CUdeviceptr* address) {
  return allocate(context, capacity, Growth::to_the_limit, address);
}

CUresult PoolBackend::allocate(StreamSource& context, std::uint64_t capacity, Growth growth,
                               CUdeviceptr* address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  if (pair_.is_refused_to_peer()) return CUDA_ERROR_NOT_SUPPORTED;
  if (would_exceed_maximum(capacity)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUstream stream = nullptr;
  CUresult result = context.thread_stream(&stream);
  if (result != CUDA_SUCCESS) return result;
  CUmemoryPool pool = nullptr;
  const PoolKind kind = pool_kind_of(capacity);
  result = pair_.get(kind, stream, &pool);
  if (result != CUDA_SUCCESS) return result;
  if (lacks_room(pool, capacity, growth)) return CUDA_ERROR_OUT_OF_MEMORY;
  result = driver_.cuMemAllocFromPoolAsync(address, capacity, pool, stream);
  if (result != CUDA_SUCCESS) return result;
  if (CUPOOL_MUTATED("fresh-unasked")) return CUDA_SUCCESS;
  // I2: usable at once on every stream only if the allocation itself has completed.
  result = driver_.cuStreamQuery(stream);
  if (result == CUDA_ERROR_NOT_READY) result = driver_.cuStreamSynchronize(stream);
  if (result != CUDA_SUCCESS) {
    release_or_leave(context, *address);
    *address = 0;
    return result;
  }
  shed_slack(kind, pool);
  return CUDA_SUCCESS;
}

// If a pool had to grow although it holds much idle memory, that memory is in fragments that do not
// fit. Its whole idle chunks then go back to the device. Otherwise a program with changing sizes
// would end up with the sum of all its phases, because the driver keeps memory up to the release
// threshold.
void PoolBackend::shed_slack(PoolKind kind, CUmemoryPool pool) {
  const std::uint64_t reserved = reserved_bytes(driver_, pool);
  std::atomic<std::uint64_t>& last_reserved = last_reserved_[index_of(kind)];
  const std::uint64_t last = last_reserved.exchange(reserved, std::memory_order_relaxed);
  if (reserved != pair_.reserved_seen(kind)) pair_.see_reserved();
  if (reserved <= last) return;
  const DeviceLimits& limits = device_.limits;
  // Memory that the user asked to keep is kept.
  if (limits.prealloc != 0 || limits.release_threshold < device_.total_bytes) return;
  const std::uint64_t used = used_bytes(driver_, pool);
  const std::uint64_t allowed = std::max(used + stats::kPoolGrowthStep, device_.budget.footprint());
  if (reserved <= allowed) return;
  driver_.cuMemPoolTrimTo(pool, used + stats::kPoolGrowthStep);
  pair_.see_reserved();
}

bool PoolBackend::release(StreamSource& context, CUdeviceptr address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUstream stream = nullptr;
  return scope.ok() && context.thread_stream(&stream) == CUDA_SUCCESS &&
         driver_.cuMemFreeAsync(address, stream) == CUDA_SUCCESS;
}

void PoolBackend::release_or_leave(StreamSource& context, CUdeviceptr address) {
  if (!release(context, address) && !release(context, address)) device_.orphans.add(address);
}

void PoolBackend::trim(StreamSource& context, std::uint64_t keep_large) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  // A pool gives back only memory whose frees have completed, on the streams of all threads.
  if (scope.ok()) {
    for (const CUstream stream : context.streams().all()) cuda::wait_for_stream(driver_, stream);
  }
  pair_.trim(keep_large);
}

void PoolBackend::start(StreamSource& context) {
  const cuda::ContextScope scope(driver_, context.handle());
  if (!scope.ok()) return;
  for (const std::uint64_t capacity : {capacity_for(1), kLargeUnit}) {
    CUdeviceptr address = 0;
    if (allocate(context, capacity, &address) != CUDA_SUCCESS) return;
    release_or_leave(context, address);
  }
  // Idle memory of the default pool may belong to the program.
  if (!device_.limits.use_default_pool) trim(context);
}

// The two pools share one CUPOOL_MAX_SIZE; the driver limits each pool separately.
bool PoolBackend::would_exceed_maximum(std::uint64_t capacity) const {
  const std::uint64_t maximum = device_.limits.max_size;
  if (maximum == 0) return false;
  const std::uint64_t held =
      static_cast<std::uint64_t>(device_.stats.value(stats::Gauge::held_bytes).current);
  return held + capacity > maximum;
}

// Asked only if the pool has to grow, which costs ten times as much as the query. A growth that
// fails costs fifty times as much, since the driver maps all free memory first.
bool PoolBackend::lacks_room(CUmemoryPool pool, std::uint64_t capacity, Growth growth) const {
  const std::uint64_t reserved = reserved_bytes(driver_, pool);
  const std::uint64_t used = used_bytes(driver_, pool);
  if (reserved >= used + capacity) return false;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) return false;
  if (growth == Growth::to_the_limit) return reserved + free_bytes < used + capacity;
  return free_bytes < stats::in_growth_steps(capacity) + kLeftFree;
}

}  // namespace cupool::engine
