// SPDX-License-Identifier: Apache-2.0
// Measures the cost of the driver's own allocations and frees. A query whether the GPU is busy
// creates, records, queries and destroys one event of the context. An event kept for later could
// outlive its context.
#include "observe/observer.h"

#include <algorithm>
#include <new>

#include "engine/block/accounting.h"
#include "engine/block/size_class.h"
#include "stats/pool_growth.h"
#include "stats/stall.h"
#include "stats/thread_figures.h"
#include "stats/timeline.h"
#include "util/log.h"

namespace cupool::observe {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

namespace {

thread_local bool thread_is_counted = false;

}  // namespace

void Observer::count_thread() {
  if (thread_is_counted) return;
  thread_is_counted = true;
  threads_.fetch_add(1, std::memory_order_relaxed);
}

int Observer::current_ordinal() const {
  CUdevice device = -1;
  const bool known =
      !cuda::shut_down() && driver_.cuCtxGetDevice(&device) == CUDA_SUCCESS && device >= 0;
  return known && device < stats::kMaxDevices ? device : -1;
}

// The caller holds the mutex.
Observer::Need& Observer::need_of(int ordinal) {
  const auto [place, is_new] = needs_.try_emplace(ordinal);
  if (is_new && ordinal >= 0) {
    size_t total = 0;
    char name[128] = {};
    driver_.cuDeviceTotalMem_v2(&total, ordinal);
    driver_.cuDeviceGetName(name, sizeof(name) - 1, ordinal);
    stats::device(ordinal).set_device_info(name, total);
    place->second.total_bytes = total;
  }
  return place->second;
}

// The caller holds the mutex. add_live() has made all records.
void Observer::count_live(const Live& live, int sign) {
  DeviceStats& stats = stats::device(live.ordinal);
  stats.gauge_add(Gauge::passthrough_bytes, sign * engine::signed_bytes(live.bytes));
  stats.gauge_add(Gauge::device_bytes, sign * engine::signed_bytes(live.bytes));
  Need& need = need_of(live.ordinal);
  const std::uint64_t capacity = engine::capacity_for(live.bytes);
  Need::Blocks& blocks = need.classes[capacity];
  if (sign < 0) {
    need.rounded -= capacity;
    --blocks.live;
    return;
  }
  need.rounded += capacity;
  need.rounded_peak = std::max(need.rounded_peak, need.rounded);
  blocks.peak = std::max(blocks.peak, ++blocks.live);
}

// An address that is already known was freed by a route that cupool does not see, for example with
// its context. Without host memory for its records, memory is not counted as live.
void Observer::add_live(CUdeviceptr address, const Live& live) noexcept {
  try {
    need_of(live.ordinal).classes.try_emplace(engine::capacity_for(live.bytes));
    const auto [place, is_new] = live_.try_emplace(address, live);
    if (!is_new) {
      count_live(place->second, -1);
      place->second = live;
    }
  } catch (const std::bad_alloc&) {
    CUPOOL_WARN_ONCE("out of host memory: the report lacks memory that the program has");
    return;
  }
  count_live(live, +1);
}

void Observer::note_allocation(CUdeviceptr address, std::uint64_t bytes, std::uint64_t duration) {
  count_thread();
  const int ordinal = current_ordinal();
  DeviceStats& stats = stats::device(ordinal);
  stats.add(Counter::malloc_calls_total);
  stats.call_times().malloc.record(duration);
  if (address == 0 || bytes == 0) {
    stats.add(Counter::malloc_failed_total);
    return;
  }
  stats.add(Counter::malloc_requested_bytes_total, bytes);
  stats.add(Counter::served_passthrough_total);
  stats.requested_sizes().record(bytes);
  stats::this_thread().add_mallocs(1, bytes);
  mallocs_.fetch_add(1, std::memory_order_relaxed);
  malloc_ns_.fetch_add(duration, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  add_live(address, {bytes, ordinal});
}

Observer::Gpu Observer::ask_gpu() {
  if (driver_.cuCtxRecordEvent == nullptr || cuda::shut_down()) return Gpu::unknown;
  const std::shared_lock<std::shared_mutex> lock(capture_mutex_);
  CUcontext context = nullptr;
  CUevent event = nullptr;
  if (queries_no_more_ || !captures_.empty() || driver_.cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      context == nullptr ||
      driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return Gpu::unknown;
  }
  Gpu answer = Gpu::unknown;
  if (driver_.cuCtxRecordEvent(context, event) == CUDA_SUCCESS) {
    const std::uint64_t start = util::now_ns();
    CUresult state = driver_.cuEventQuery(event);
    while (state == CUDA_ERROR_NOT_READY && util::now_ns() - start < stats::kShortestStallNs) {
      state = driver_.cuEventQuery(event);
    }
    if (state == CUDA_SUCCESS) answer = Gpu::idle;
    if (state == CUDA_ERROR_NOT_READY) answer = Gpu::busy;
  }
  driver_.cuEventDestroy_v2(event);
  return answer;
}

// Removes the record before the real call: another thread may get the address at once and add its
// own record.
Observer::Freed Observer::begin_free(CUdeviceptr address) {
  count_thread();
  Freed freed;
  freed.address = address;
  if (address == 0) return freed;
  freed.gpu = ask_gpu();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return freed;
  freed.live = found->second;
  freed.known = true;
  count_live(freed.live, -1);
  live_.erase(found);
  return freed;
}

void Observer::end_free(const Freed& freed, CUresult result, std::uint64_t duration) {
  DeviceStats& stats = stats::device(freed.known ? freed.live.ordinal : current_ordinal());
  stats.add(Counter::free_calls_total);
  if (freed.address == 0) {
    stats.add(Counter::free_null_total);
    return;
  }
  stats.call_times().free.record(duration);
  if (result != CUDA_SUCCESS) {
    stats.add(Counter::free_rejected_total);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (freed.known) add_live(freed.address, freed.live);
    return;
  }
  if (!freed.known) {
    stats.add(Counter::free_foreign_total);
    return;
  }
  stats.add(Counter::free_bytes_total, freed.live.bytes);
  stats::this_thread().add_frees(1);
  if (freed.gpu == Gpu::unknown) {
    unknown_frees_.fetch_add(1, std::memory_order_relaxed);
    unknown_free_ns_.fetch_add(duration, std::memory_order_relaxed);
    return;
  }
  const bool busy = freed.gpu == Gpu::busy;
  (busy ? busy_free_time_ : idle_free_time_).record(duration);
  if (!busy) return;
  stats.add(Counter::free_waits_total);
  stats.add(Counter::free_wait_ns_total, duration);
  stats::this_thread().add_wait(duration);
  if (duration >= stats::kShortestWaitNs) {
    stats::note_event(stats::EventKind::wait, stats, 0, duration);
  }
}

bool Observer::has_place_for_capture() {
  try {
    captures_.reserve(captures_.size() + 1);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Observer::forget_capture(CUstream stream) {
  const auto found = std::find(captures_.begin(), captures_.end(), stream);
  if (found != captures_.end()) captures_.erase(found);
}

void Observer::count(Counter counter) {
  stats::device(current_ordinal()).add(counter);
}

void Observer::refresh_figures() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<int, std::pair<std::int64_t, std::int64_t>> leaked;
  for (const auto& [ordinal, need] : needs_) leaked[ordinal] = {0, 0};
  for (const auto& [address, live] : live_) {
    leaked[live.ordinal].first += 1;
    leaked[live.ordinal].second += engine::signed_bytes(live.bytes);
  }
  for (const auto& [ordinal, sums] : leaked) {
    stats::device(ordinal).gauge_set(Gauge::leaked_blocks, sums.first);
    stats::device(ordinal).gauge_set(Gauge::leaked_bytes, sums.second);
  }
}

stats::Observation Observer::read() const {
  stats::Observation seen;
  seen.threads = threads_.load(std::memory_order_relaxed);
  seen.mallocs = mallocs_.load(std::memory_order_relaxed);
  seen.malloc_ns = malloc_ns_.load(std::memory_order_relaxed);
  seen.unknown_frees = unknown_frees_.load(std::memory_order_relaxed);
  seen.busy_free_time = busy_free_time_.summary();
  seen.idle_free_time = idle_free_time_.summary();
  seen.busy_frees = seen.busy_free_time.count;
  seen.busy_free_ns = seen.busy_free_time.sum_ns;
  seen.frees = seen.busy_frees + seen.idle_free_time.count + seen.unknown_frees;
  seen.free_ns = seen.busy_free_ns + seen.idle_free_time.sum_ns +
                 unknown_free_ns_.load(std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [ordinal, need] : needs_) {
    std::uint64_t all_classes = 0;
    for (const auto& [capacity, blocks] : need.classes) {
      seen.fresh_blocks += blocks.peak;
      all_classes += capacity * blocks.peak;
    }
    const auto peak = stats::device(ordinal).value(Gauge::device_bytes).peak;
    seen.live_peak_bytes += static_cast<std::uint64_t>(std::max<std::int64_t>(peak, 0));
    seen.rounded_peak_bytes += need.rounded_peak;
    // Each class at its own peak, limited by the engine's budget (engine/backend/budget), since
    // idle blocks are released before more is held. Freed memory is added while the GPU may use it.
    const std::uint64_t budget = need.rounded_peak + need.rounded_peak / 8 + stats::kPoolGrowthStep;
    seen.pool_most_bytes +=
        std::min(all_classes, budget) + settings_.max_pending.resolve(need.total_bytes);
    seen.device_total_bytes += need.total_bytes;
  }
  return seen;
}

}  // namespace cupool::observe
