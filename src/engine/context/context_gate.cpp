// SPDX-License-Identifier: Apache-2.0
// A wait at a gate polls, since contexts end rarely and a visit takes microseconds.
#include "engine/context/context_gate.h"

#include <sched.h>
#include <time.h>

#include "util/clock.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kLongestVisitNs = 10'000'000'000;

// Waits for `done()`. False: `until_ns` has passed (0: no limit).
template <typename Done>
bool wait_until(std::uint64_t until_ns, const Done& done) {
  constexpr unsigned kYields = 100;
  constexpr timespec kMoment{0, 50'000};
  const util::Uncancelled throughout;
  for (unsigned looks = 0; !done(); ++looks) {
    if (until_ns != 0 && util::now_ns() >= until_ns) return false;
    if (looks < kYields) {
      sched_yield();
    } else {
      nanosleep(&kMoment, nullptr);
    }
  }
  return true;
}

}  // namespace

bool ContextGate::try_enter() {
  if (word_.fetch_add(kVisitor, std::memory_order_acquire) < kCloser) return true;
  leave();
  return false;
}

bool ContextGate::enter(std::uint64_t limit_ns) {
  if (try_enter()) return true;
  const std::uint64_t until = limit_ns == 0 ? 0 : util::now_ns() + limit_ns;
  waiting_.fetch_add(1, std::memory_order_relaxed);
  const bool entered = wait_until(until, [this] { return !is_closed() && try_enter(); });
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return entered;
}

bool ContextGate::close(unsigned own) {
  constexpr std::uint64_t kLongestCourtesyNs = 10'000'000;
  wait_until(util::now_ns() + kLongestCourtesyNs,
             [this] { return is_closed() || waiting_.load(std::memory_order_relaxed) == 0; });
  // What visitors did is seen below, where the last of them has left.
  word_.fetch_add(kCloser, std::memory_order_relaxed);
  if (CUPOOL_MUTATED("ends-beside-visitors")) return true;
  return wait_until(util::now_ns() + kLongestVisitNs,
                    [&] { return (word_.load(std::memory_order_acquire) & kVisitors) <= own; });
}

void ContextGate::wait_until_open() const {
  wait_until(0, [this] { return !is_closed(); });
}

}  // namespace cupool::engine
