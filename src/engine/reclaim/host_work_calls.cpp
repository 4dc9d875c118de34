// SPDX-License-Identifier: Apache-2.0
// Counting calls under way, and waiting for them.
#include "engine/reclaim/host_work_calls.h"

#include <sched.h>

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

HostWorkCalls HostWorkCalls::early_;
std::array<HostWorkCalls::Line, kHostWorkLines> HostWorkCalls::lines_;

// Before the driver's call: who sees what the work does sees both.
HostWorkCalls::Call::Call(HostWorkCalls* calls) : calls_(calls) {
  if (calls == nullptr) return;
  line_ = &lines_[line_of_thread<kHostWorkLines>()].calls;
  std::uint64_t found = line_->load(std::memory_order_relaxed);
  while (!line_->compare_exchange_weak(found, found + 1 + (calls_in(found) == 0 ? kAnew : 0),
                                       std::memory_order_relaxed)) {
  }
  calls->under_way_.fetch_add(1, std::memory_order_relaxed);
}

HostWorkCalls::Call::~Call() {
  if (calls_ == nullptr) return;
  line_->fetch_sub(1, std::memory_order_release);
  calls_->under_way_.fetch_sub(1, std::memory_order_release);
}

// For the calls of now, and none that begins meanwhile. Those of other contexts hold up nobody for
// longer than those of this one.
bool HostWorkCalls::wait_for_notes() const {
  const std::uint64_t begin = util::now_ns();
  std::array<std::uint64_t, kHostWorkLines> first;
  for (std::size_t i = 0; i < first.size(); ++i) {
    first[i] = lines_[i].calls.load(std::memory_order_acquire);
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (calls_in(first[i]) == 0) continue;
    for (;;) {
      const std::uint64_t now = lines_[i].calls.load(std::memory_order_acquire);
      if (calls_in(now) == 0 || now / kAnew != first[i] / kAnew) break;
      if (!any()) return true;
      if (util::now_ns() - begin > kLongestForNotesNs) return false;
      sched_yield();
    }
  }
  return true;
}

}  // namespace cupool::engine
