// SPDX-License-Identifier: Apache-2.0
// Waits by the epochs of the frees, as a free that waits would have done.
#include "engine/serve/messages.h"

#include <time.h>

#include <algorithm>

#include "engine/serve/giving_back.h"
#include "engine/serve/idle_memory.h"
#include "stats/timeline.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;

namespace {

// The longest wait of a call of MPI for work before other threads' frees.
constexpr std::uint64_t kLongestWaitForFreesNs = 10'000'000'000;

constexpr std::uint64_t kNoLimit = 0;

// Another thread may end a context that is not the caller's, and waits for a visit. It may take as
// long as the work there.
WaitResult wait_in_visits(Context& context, EpochNumber epoch, std::uint64_t limit_ns) {
  constexpr timespec kMoment{0, 100'000};
  const std::uint64_t start = util::now_ns();
  WaitResult all;
  for (bool closed = false;;) {
    {
      const ContextVisit visit(context, kOneVisitNs);
      if (!visit && context.gone()) return all;
      closed = !visit;
      const WaitResult result = visit ? context.ordering().wait(epoch, kOneVisitNs)
                                      : WaitResult{WaitResult::Outcome::still_pending, true};
      all = {result.outcome, all.waited || result.waited, result.error};
      if (!result.worth_repeating() || result.outcome == WaitResult::Outcome::not_possible)
        return all;
    }
    // The work there may be complete, though nobody has looked.
    const std::uint64_t limit = closed && limit_ns == kNoLimit ? kLongestWaitForFreesNs : limit_ns;
    if (limit != kNoLimit && util::now_ns() - start >= limit) return all;
    if (closed) nanosleep(&kMoment, nullptr);
  }
}

// Whether the work before the frees of `epoch` and of earlier ones is complete, or there is nothing
// left to wait for: the driver reports a sticky error itself. In the current context there is no
// limit.
bool wait_in(Context& context, EpochNumber epoch, bool is_current, std::uint64_t limit_ns) {
  if (!context.usable() || epoch <= context.ordering().epochs().complete_up_to()) return true;
  const std::uint64_t start = util::now_ns();
  const WaitResult result =
      is_current ? context.ordering().wait(epoch) : wait_in_visits(context, epoch, limit_ns);
  if (result.waited) {
    context.stats().add(Counter::message_waits_total);
    context.stats().add(Counter::message_wait_ns_total, util::now_ns() - start);
  }
  return result.complete() || !context.usable();
}

}  // namespace

// Functions of these names may also be stand-ins for MPI, of a program that has none.
void Messages::learn() {
  using Look = IdleMemory::Look;
  thread_local bool has_looked = false;
  const bool again = has_looked && !policy_.knows_of_others();
  has_looked = true;
  idle_.look_for_libraries(again ? Look::if_added : Look::anyway);
}

// The frees of before are not known one by one. A free that goes on meanwhile, and has not seen the
// change of the mode, has submitted its work before the fence.
void Messages::cover(ContextRegistry& registry) {
  for (Context* const context : registry.all()) {
    const ContextVisit visit(*context, kLongestWaitForOthersNs);
    if (!visit || !context->usable()) continue;
    Ordering& ordering = context->ordering();
    const EpochNumber all = ordering.epochs().open();
    ordering.fence(all);
    ordering.epochs().set_unwaited(all);
  }
  MessageCalls::count_free();
}

void Messages::wait_for_own() {
  if (CUPOOL_MUTATED("forgets-messages")) return;
  const util::Uncancelled throughout;
  MessageCalls::Own& own = MessageCalls::own();
  Context* const current = registry_.current();
  bool complete = true;
  for (Context* const context : registry_.all()) {
    EpochNumber epoch = own.more ? context->ordering().epochs().unwaited() : kNoEpoch;
    for (const MessageCalls::Own::Newest& newest : own.newest) {
      if (newest.context == context) epoch = std::max(epoch, newest.epoch);
    }
    if (!wait_in(*context, epoch, context == current, kNoLimit)) complete = false;
  }
  if (complete) own = MessageCalls::Own{};
}

bool Messages::wait(ContextRegistry& registry, std::uint64_t limit_ns) {
  const util::Uncancelled throughout;
  const std::uint64_t frees = MessageCalls::frees();
  const std::uint64_t deadline = util::now_ns() + limit_ns;
  bool complete = true;
  for (Context* const context : registry.all()) {
    const EpochNumber epoch = context->ordering().epochs().unwaited();
    const std::uint64_t now = util::now_ns();
    if (!wait_in(*context, epoch, false, deadline > now ? deadline - now : 1)) complete = false;
  }
  if (complete) MessageCalls::settle(frees);
  return complete;
}

void Messages::wait_for_all(std::uint64_t frees) {
  if (CUPOOL_MUTATED("forgets-messages")) return;
  const std::uint64_t start = util::now_ns();
  if (wait(registry_, kLongestWaitForFreesNs)) return;
  if (util::now_ns() - start < kLongestWaitForFreesNs) return;  // the driver refused to wait
  MessageCalls::settle(frees);
  policy_.let_see(FreePolicy::Others::at_any_time);
  CUPOOL_WARN_ONCE(
      "a call of MPI has waited ten seconds for work that another thread submitted before a free, "
      "and goes on: from now on frees wait for the GPU. CUPOOL_FREE_MODE=sync has it so from the "
      "start");
}

}  // namespace cupool::engine
