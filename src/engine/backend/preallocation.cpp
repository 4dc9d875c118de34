// SPDX-License-Identifier: Apache-2.0
// Memory is reserved by allocating it. Slices stay allocated until the last one, since the pool
// would hand the first one out again.
#include "engine/backend/preallocation.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/backend/pool_attributes.h"
#include "engine/backend/pool_backend.h"
#include "engine/block/size_class.h"
#include "util/log.h"

namespace cupool::engine {
namespace {

// Bytes reserved at once in the background. The program's calls find the driver free in between.
constexpr std::uint64_t kPreallocationSlice = 64ull << 20;

void warn_of_refusal(const cuda::Driver& driver, std::uint64_t bytes, CUresult result) {
  if (cuda::has_shut_down(driver)) return;
  CUPOOL_WARN_ONCE(
      "CUPOOL_PREALLOC: the driver refused to reserve %llu bytes (error %d), so the pool starts "
      "without them; try a smaller value",
      static_cast<unsigned long long>(bytes), static_cast<int>(result));
}

void warn_of_threshold(const DeviceLimits& limits) {
  if (limits.prealloc <= limits.release_threshold) return;
  CUPOOL_WARN_ONCE(
      "CUPOOL_PREALLOC exceeds CUPOOL_RELEASE_THRESHOLD: at a synchronisation the driver gives the "
      "excess back to the device; raise the threshold");
}

}  // namespace

bool Preallocation::begin() {
  return device_.limits.prealloc != 0 && !begun_.exchange(true, std::memory_order_relaxed);
}

void Preallocation::reserve(StreamSource& context) {
  warn_of_threshold(device_.limits);
  const std::uint64_t capacity = capacity_for(std::max(device_.limits.prealloc, kLargeUnit));
  CUdeviceptr address = 0;
  const CUresult result = pools_.allocate(context, capacity, &address);
  if (result == CUDA_SUCCESS) {
    pools_.release(context, address);
  } else {
    warn_of_refusal(driver_, capacity, result);
  }
}

Preallocation::State Preallocation::reserve_some(StreamSource& context) {
  if (!is_left()) return ended;
  const State state = reserve_slice(context);
  if (state == ended) left_.store(false, std::memory_order_relaxed);
  return state;
}

Preallocation::State Preallocation::reserve_slice(StreamSource& context) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return ended;
  }
  const std::uint64_t wanted = device_.limits.prealloc;
  const CUmemoryPool pool = pools_.pair().created(PoolKind::large);
  std::uint64_t reserved = 0;
  if (pool != nullptr) {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    reserved = reserved_bytes(driver_, pool);
  } else {
    warn_of_threshold(device_.limits);
  }
  if (reserved >= wanted) {
    end(context);
    return ended;
  }
  const std::uint64_t slice =
      capacity_for(std::clamp(wanted - reserved, kLargeUnit, kPreallocationSlice));
  CUdeviceptr address = 0;
  const cuda::ContextScope scope(driver_, context.handle());
  const CUresult result =
      scope.ok() ? pools_.allocate(context, slice, &address) : CUDA_ERROR_INVALID_CONTEXT;
  // After a reset, the primary context stays current, but is invalid until the program's next call
  // creates it again.
  if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    return waits;
  }
  if (result != CUDA_SUCCESS) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !taken_by_program()) {
      warn_of_refusal(driver_, wanted - reserved, result);
    }
    end(context);
    return ended;
  }
  Block* const record = new_block();
  if (record != nullptr) {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      record->address = address;
      slices_.push(record);
      bytes_.fetch_add(slice, std::memory_order_relaxed);
      return goes_on;
    }
  }
  pools_.release(context, address);
  if (record == nullptr) {
    CUPOOL_WARN_ONCE(
        "no host memory for the records of CUPOOL_PREALLOC: it goes back; give the process more "
        "memory, or preallocate less");
    end(context);
  } else {
    delete_block(record);
  }
  device_.budget.forget_most_held();
  return ended;
}

// Whether the program itself already holds the memory that the preallocation would take.
bool Preallocation::taken_by_program() const {
  const stats::DeviceStats& stats = device_.stats;
  const auto now = [&](stats::Gauge gauge) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(stats.value(gauge).current, 0));
  };
  return now(stats::Gauge::held_bytes) + now(stats::Gauge::passthrough_bytes) +
             device_.limits.prealloc + PoolBackend::kLeftFree >
         device_.total_bytes;
}

void Preallocation::end(StreamSource& context) {
  if (ended_.load(std::memory_order_acquire)) return;
  BlockList held;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    held.splice(slices_);
    bytes_.store(0, std::memory_order_relaxed);
  }
  while (Block* const record = held.pop()) {
    pools_.release_or_leave(context, record->address);
    delete_block(record);
  }
}

}  // namespace cupool::engine
