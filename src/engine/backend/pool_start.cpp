// SPDX-License-Identifier: Apache-2.0
// The time of the start, and the allocations' wait for it.
#include "engine/backend/pool_start.h"

#include <chrono>
#include <thread>

#include "engine/backend/pool_backend.h"
#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::engine {

bool PoolStart::becomes_due() {
  constexpr unsigned kFew = 3;
  if (freed_by_driver_.load(std::memory_order_relaxed) < kFew) return false;
  State waits = State::waits;
  if (!state_.compare_exchange_strong(waits, State::due, std::memory_order_acq_rel)) return false;
  due_since_ns_.store(util::now_ns(), std::memory_order_release);
  return true;
}

bool PoolStart::wait() const {
  constexpr std::uint64_t kFirstNs = 15'000'000;
  constexpr std::uint64_t kLongestNs = 100'000'000;
  constexpr std::uint64_t kEachNs = 1'000'000'000;
  const std::uint64_t since = due_since_ns_.load(std::memory_order_acquire);
  const std::uint64_t now = util::now_ns();
  if (since == 0 || now < since + kFirstNs) return is_done();
  const std::uint64_t end = now - (now - since - kFirstNs) % kEachNs + kLongestNs;
  const util::Uncancelled throughout;
  while (!is_done() && util::now_ns() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return is_done();
}

void PoolStart::start(StreamSource& context) {
  pools_->start(context);
  state_.store(State::done, std::memory_order_release);
}

}  // namespace cupool::engine
