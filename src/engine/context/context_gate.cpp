// SPDX-License-Identifier: Apache-2.0
// A wait at a gate polls, since contexts end rarely and a visit takes microseconds.
#include "engine/context/context_gate.h"

#include <time.h>

#include "engine/block/shared_mutex.h"
#include "engine/context/context.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kLongestVisitNs = 10'000'000'000;

// The calling thread's innermost open visit.
thread_local ContextVisit* innermost;

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
  waiting_.fetch_add(1, std::memory_order_acq_rel);
  const bool entered = wait_until(until, [this] { return !is_closed() && try_enter(); });
  waiting_.fetch_sub(1, std::memory_order_acq_rel);
  return entered;
}

bool ContextGate::close(unsigned own) {
  constexpr std::uint64_t kLongestCourtesyNs = 10'000'000;
  wait_until(util::now_ns() + kLongestCourtesyNs,
             [this] { return is_closed() || waiting_.load(std::memory_order_acquire) == 0; });
  word_.fetch_add(kCloser, std::memory_order_acq_rel);
  if (CUPOOL_MUTATED("ends-beside-visitors")) return true;
  return wait_until(util::now_ns() + kLongestVisitNs,
                    [&] { return (word_.load(std::memory_order_acquire) & kVisitors) <= own; });
}

void ContextGate::wait_until_open() const {
  wait_until(0, [this] { return !is_closed(); });
}

unsigned ContextVisit::of_this_thread(const ContextGate& gate) {
  unsigned visits = 0;
  for (const ContextVisit* visit = innermost; visit != nullptr; visit = visit->outer_) {
    visits += visit->gate_ == &gate && visit->entered_ ? 1 : 0;
  }
  return visits;
}

bool ContextVisit::any_of_this_thread() {
  return innermost != nullptr;
}

ContextVisit::ContextVisit(Context& context, std::uint64_t limit_ns)
    : gate_(&context.gate()), outer_(innermost) {
  constexpr std::uint64_t kAtOnce = 1;
  innermost = this;
  if (of_this_thread(*gate_) != 0) {
    inside_ = true;
    return;
  }
  entered_ = gate_->enter(outer_ == nullptr ? limit_ns : kAtOnce);
  inside_ = entered_ && !context.gone();
}

ContextVisit::~ContextVisit() {
  innermost = outer_;
  if (entered_) gate_->leave();
}

// A signal handler that interrupted a visit may run the program's exit handlers, and these may end
// the context of that visit.
ContextEnd::ContextEnd(Context& context)
    : gate_(context.gate()), alone_(gate_.close(ContextVisit::of_this_thread(gate_))) {
  if (alone_) return;
  CUPOOL_WARN_ONCE(
      "the program destroys a context while another call still uses it: cupool's blocks of that "
      "context are set aside. Let all calls return before destroying the context");
}

ContextEnd::~ContextEnd() {
  gate_.open();
}

}  // namespace cupool::engine
