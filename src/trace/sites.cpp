// SPDX-License-Identifier: Apache-2.0
// Draws the samples of each thread, and joins the begin and the end of a free.
#include "trace/sites.h"

#include <algorithm>

#include "stats/thread_figures.h"
#include "trace/call_stack.h"
#include "trace/site_sampling.h"
#include "util/clock.h"

namespace cupool::trace {

namespace detail {
std::atomic<const SiteTable*> sites_read{nullptr};
}

namespace {

constexpr std::size_t kLongestOfPython = 1024;  // frames that are looked at

std::atomic<SiteTable*> site_table{nullptr};
std::atomic<std::uint64_t> interval_bytes{0};
std::atomic<std::uint64_t> widest_bytes{0};  // interval of any thread so far
std::atomic<bool> is_paced{false};

// What the calling thread's samples cost it.
struct Pacing {
  SamplingPace pace{0};
  std::uint64_t last_end_ns = 0;

  void sampled(std::uint64_t begin_ns) noexcept {
    const std::uint64_t end_ns = util::now_ns();
    // A handler's sample may have ended within this one.
    pace.sampled(begin_ns - std::min(last_end_ns, begin_ns), end_ns - begin_ns);
    last_end_ns = end_ns;
    std::uint64_t widest = widest_bytes.load(std::memory_order_relaxed);
    while (widest < pace.interval() && !widest_bytes.compare_exchange_weak(
                                           widest, pace.interval(), std::memory_order_relaxed)) {
    }
  }
};
thread_local Pacing pacing;

// The free of a sampled block that the calling thread is in.
struct FreeNow {
  bool is_open = false;
  std::uint64_t waits = 0;  // of the thread before it
  SampledFree sampled;
};
thread_local FreeNow free_now;

}  // namespace

bool start_sites(std::uint64_t interval, bool paced) noexcept {
  SiteTable* const table = SiteTable::create({});
  if (table == nullptr) return false;
  interval_bytes.store(interval, std::memory_order_relaxed);
  widest_bytes.store(interval, std::memory_order_relaxed);
  is_paced.store(paced, std::memory_order_relaxed);
  detail::sites_read.store(table, std::memory_order_release);
  site_table.store(table, std::memory_order_release);
  return true;
}

void site_allocated(const Memory& memory) noexcept {
  SiteTable* const table = site_table.load(std::memory_order_acquire);
  if (table == nullptr || memory.bytes == 0) return;
  SamplingThread& own = sampling_thread;
  if (own.random == 0) {
    pacing.last_end_ns = util::now_ns();
    pacing.pace = SamplingPace(interval_bytes.load(std::memory_order_relaxed));
    own.random = pacing.last_end_ns ^ (reinterpret_cast<std::uintptr_t>(&own) << 20);
    own.until_sample = draw_distance(&own.random, pacing.pace.interval());
  }
  if (passes_unsampled(memory.bytes)) return count_unsampled(memory.bytes);
  const std::uint64_t begin_ns = util::now_ns();
  ++own.calls;
  const std::uint64_t interval = pacing.pace.interval();
  own.until_sample = draw_distance(&own.random, interval);
  SiteTable::Stack stack;
  bool in_handler = false;
  const std::size_t longest = python_address() == 0 ? SiteTable::kMostFrames : kLongestOfPython;
  stack.depth = walk_stack(stack.addresses, SiteTable::kMostFrames, longest, &in_handler);
  // A handler may have interrupted the interpreter anywhere.
  if (!in_handler) python_stack(&stack.python);
  table->allocated(stack, {memory.address, memory.bytes,
                           1 / probability_of_sample(memory.bytes, interval), &own, own.calls});
  if (!is_paced.load(std::memory_order_relaxed)) return;
  pacing.sampled(begin_ns);
  if (pacing.pace.interval() != interval) {
    own.until_sample = draw_distance(&own.random, pacing.pace.interval());
  }
}

void site_freed(std::uint64_t address) noexcept {
  SiteTable* const table = site_table.load(std::memory_order_acquire);
  if (table == nullptr) return;
  SamplingThread& own = sampling_thread;
  FreeNow& now = free_now;
  now.is_open = table->freed(address, &own, ++own.calls, &now.sampled);
  now.waits = stats::waits_of_thread;
}

void site_free_done(std::uint64_t address, bool refused) noexcept {
  FreeNow& now = free_now;
  if (!now.is_open || now.sampled.block.address != address) return;
  now.is_open = false;
  SiteTable* const table = site_table.load(std::memory_order_acquire);
  if (refused) return table->undo(now.sampled);
  if (stats::waits_of_thread != now.waits) table->waited(now.sampled);
}

stats::Sites memory_by_site() {
  stats::Sites read;
  SiteTable* const table = site_table.load(std::memory_order_acquire);
  if (table != nullptr && table->read(&read)) {
    read.interval_bytes = interval_bytes.load(std::memory_order_relaxed);
    read.widest_interval_bytes = widest_bytes.load(std::memory_order_relaxed);
  }
  return read;
}

}  // namespace cupool::trace
