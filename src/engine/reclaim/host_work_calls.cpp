// SPDX-License-Identifier: Apache-2.0
// Counting calls under way, and waiting for them.
#include "engine/reclaim/host_work_calls.h"

#include <sched.h>

#include <cstdint>

#include "util/clock.h"

namespace cupool::engine {
namespace {

// A call that submits work takes a few microseconds. One that takes longer waits in the driver, and
// a free waits for the whole context then.
constexpr std::uint64_t kLongestForNotesNs = 50'000;

constexpr std::uint64_t kAnew = std::uint64_t{1} << 32;
std::uint64_t calls_in(std::uint64_t line) {
  return line & (kAnew - 1);
}

}  // namespace

std::array<HostWorkCalls::Line, kCallLines> HostWorkCalls::lines_;
alignas(128) std::atomic<int> HostWorkCalls::under_way_{0};

// Both come before whatever is seen of the work, since the driver passes that on.
HostWorkCalls::Call::Call(bool is_seen) {
  if (!is_seen) return;
  line_ = &lines_[line_of_thread()];
  std::uint64_t found = line_->calls.load(std::memory_order_relaxed);
  while (!line_->calls.compare_exchange_weak(found, found + 1 + (calls_in(found) == 0 ? kAnew : 0),
                                             std::memory_order_relaxed)) {
  }
  under_way_.fetch_add(1, std::memory_order_relaxed);
}

HostWorkCalls::Call::~Call() {
  if (line_ == nullptr) return;
  line_->calls.fetch_sub(1, std::memory_order_release);
  under_way_.fetch_sub(1, std::memory_order_release);
}

bool HostWorkCalls::wait_for_notes() {
  const std::uint64_t begin = util::now_ns();
  for (const Line& line : lines_) {
    const std::uint64_t first = line.calls.load(std::memory_order_acquire);
    for (std::uint64_t now = first; calls_in(now) != 0 && now / kAnew == first / kAnew;
         now = line.calls.load(std::memory_order_acquire)) {
      if (util::now_ns() - begin > kLongestForNotesNs) return false;
      sched_yield();
    }
  }
  return true;
}

}  // namespace cupool::engine
