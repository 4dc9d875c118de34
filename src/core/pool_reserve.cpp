// What the pools have before and beyond what the program asks for: their first blocks, and what
// they keep reserved: as much as CUPOOL_PREALLOC says from the start, and less after a while where
// nobody needs it (CUPOOL_DECAY_MS).
#include <algorithm>

#include "core/backend_pool.h"
#include "core/context.h"
#include "cuda/scopes.h"
#include "util/log.h"

namespace cupool::core {
namespace {

// Reserved at once in the background: the program's calls find the driver free in between.
constexpr std::uint64_t kPreallocationSlice = 64ull << 20;

void warn_of_refusal(std::uint64_t bytes, CUresult result) {
  CUPOOL_WARN_ONCE("CUPOOL_PREALLOC: the driver refused %llu bytes with error %d; going on without",
                   static_cast<unsigned long long>(bytes), static_cast<int>(result));
}

void warn_of_threshold(const Device::Limits& limits) {
  if (limits.prealloc <= limits.release_threshold) return;
  CUPOOL_WARN_ONCE(
      "CUPOOL_PREALLOC is larger than CUPOOL_RELEASE_THRESHOLD: the driver will give the excess "
      "back; raise the threshold");
}

}  // namespace

void PoolBackend::start(Context& context) {
  const cuda::ContextScope scope(driver_, context.handle());
  if (!scope.ok()) return;
  for (const std::uint64_t capacity : {capacity_for(1), kLargeUnit}) {
    CUdeviceptr address = 0;
    if (allocate(context, capacity, &address) != CUDA_SUCCESS) return;
    if (!release(context, address) && !release(context, address)) device_.add_orphans({address});
  }
  // What lies idle in the default pool may be the program's.
  if (!device_.limits().use_default_pool) trim(context);
}

void PoolBackend::preallocate(Context& context) {
  warn_of_threshold(device_.limits());
  const std::uint64_t capacity = capacity_for(std::max(device_.limits().prealloc, kLargeUnit));
  CUdeviceptr address = 0;
  const CUresult result = allocate(context, capacity, &address);
  if (result == CUDA_SUCCESS) {
    release(context, address);
  } else {
    warn_of_refusal(capacity, result);
  }
}

Preallocation PoolBackend::preallocate_some(Context& context) {
  {
    const std::lock_guard<std::mutex> lock(preallocation_mutex_);
    if (preallocation_ended_) return Preallocation::ended;
  }
  const std::uint64_t wanted = device_.limits().prealloc;
  const CUmemoryPool pool = pools_[kLarge].load(std::memory_order_acquire);
  std::uint64_t reserved = 0;
  if (pool != nullptr) {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    reserved = attribute_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  } else {
    warn_of_threshold(device_.limits());
  }
  if (reserved >= wanted) {
    end_preallocation(context);
    return Preallocation::ended;
  }
  const std::uint64_t slice =
      capacity_for(std::clamp(wanted - reserved, kLargeUnit, kPreallocationSlice));
  CUdeviceptr address = 0;
  const cuda::ContextScope scope(driver_, context.handle());
  const CUresult result =
      scope.ok() ? allocate(context, slice, &address) : CUDA_ERROR_INVALID_CONTEXT;
  // A primary context that was reset is current until the program's next call makes it anew.
  if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    return Preallocation::waits;
  }
  if (result != CUDA_SUCCESS) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !taken_by_program(wanted)) {
      warn_of_refusal(wanted - reserved, result);
    }
    end_preallocation(context);
    return Preallocation::ended;
  }
  {
    const std::lock_guard<std::mutex> lock(preallocation_mutex_);
    if (!preallocation_ended_) {
      preallocating_.push_back(address);
      preallocating_bytes_.fetch_add(slice, std::memory_order_relaxed);
      return Preallocation::goes_on;
    }
  }
  release(context, address);
  return Preallocation::ended;
}

// Whether the program itself has, by now, what a preallocation of `wanted` would have taken.
bool PoolBackend::taken_by_program(std::uint64_t wanted) const {
  const stats::DeviceStats& stats = device_.stats();
  const auto now = [&](stats::Gauge gauge) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(stats.value(gauge).current, 0));
  };
  return now(stats::Gauge::held_bytes) + now(stats::Gauge::passthrough_bytes) + wanted + kLeftFree >
         device_.total_bytes();
}

void PoolBackend::end_preallocation(Context& context) {
  std::vector<CUdeviceptr> held;
  {
    const std::lock_guard<std::mutex> lock(preallocation_mutex_);
    preallocation_ended_ = true;
    held.swap(preallocating_);
    preallocating_bytes_.store(0, std::memory_order_relaxed);
  }
  release_all(context, held);
}

void PoolBackend::release_all(Context& context, const std::vector<CUdeviceptr>& addresses) {
  std::vector<CUdeviceptr> refused;
  for (const CUdeviceptr address : addresses) {
    if (!release(context, address) && !release(context, address)) refused.push_back(address);
  }
  if (!refused.empty()) device_.add_orphans(refused);
}

void PoolBackend::end_decay_step(std::uint64_t released) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  decay_step_ = (decay_step_ + 1) % BlockCache::kDecaySteps;
  for (const Kind kind : {kSmall, kLarge}) {
    const CUmemoryPool pool = pools_[kind].load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    const std::uint64_t reserved = attribute_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    const std::uint64_t used = attribute_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    const std::uint64_t now = reserved - std::min(reserved, used);
    Slack& slack = slack_[kind];
    slack.at_end[decay_step_] = now;
    const std::uint64_t least = *std::min_element(slack.at_end.begin(), slack.at_end.end());
    slack.unneeded = std::min(now, std::max(least, slack.unneeded + released));
    slack.to_trim = slack.unneeded;
  }
}

bool PoolBackend::trim_unneeded(Context& context, std::uint64_t bytes, bool* more) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUstream stream = nullptr;
  // What this thread has given back to the pools has to have got there.
  if (!scope.ok() || context.thread_stream(&stream) != CUDA_SUCCESS) return false;
  driver_.cuStreamSynchronize(stream);
  bool any = false;
  for (const Kind kind : {kSmall, kLarge}) {
    Slack& slack = slack_[kind];
    if (slack.to_trim == 0) continue;
    const CUmemoryPool pool = pools_[kind].load(std::memory_order_acquire);
    const std::uint64_t before = attribute_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    const std::uint64_t part = std::min({slack.to_trim, bytes, before});
    const std::uint64_t floor = kind == kLarge ? device_.limits().prealloc : 0;
    driver_.cuMemPoolTrimTo(pool, std::max(before - part, floor));
    const std::uint64_t after = attribute_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    const std::uint64_t gone = before - std::min(before, after);
    for (std::uint64_t& each : slack.at_end) each -= std::min(each, gone);
    slack.unneeded -= std::min(slack.unneeded, gone);
    // What is less than a chunk, or in pieces between live blocks, stays until there is more of it.
    slack.to_trim = gone == 0 ? 0 : slack.to_trim - std::min(slack.to_trim, std::max(part, gone));
    any = any || gone != 0;
    *more = *more || slack.to_trim != 0;
  }
  return any;
}

}  // namespace cupool::core
