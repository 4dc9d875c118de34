// SPDX-License-Identifier: Apache-2.0
// Waits by the epochs of the frees, as a free that waits would have done.
#include "engine/serve/messages.h"

#include "stats/timeline.h"
#include "util/clock.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;

// The driver's refusals (a sticky error, a host function) leave nothing to wait for.
void Messages::wait_for(std::uint64_t frees) {
  if (CUPOOL_MUTATED("forgets-messages")) return;
  const util::Uncancelled throughout;
  Context* const current = registry_.current();
  for (Context* const context : registry_.all()) {
    const Epochs& epochs = context->ordering().epochs();
    const EpochNumber epoch = epochs.unwaited();
    if (!context->usable() || epoch <= epochs.complete_up_to()) continue;
    const std::uint64_t start = util::now_ns();
    const WaitResult result = wait_in(*context, epoch, context == current);
    if (!result.waited) continue;
    context->stats().add(Counter::message_waits_total);
    context->stats().add(Counter::message_wait_ns_total, util::now_ns() - start);
  }
  MessageCalls::settle(frees);
}

// Another thread may end a context that is not the caller's, and waits for a visit.
WaitResult Messages::wait_in(Context& context, EpochNumber epoch, bool is_current) {
  if (is_current) return context.ordering().wait(epoch);
  WaitResult all;
  for (;;) {
    const ContextVisit visit(context);
    if (!visit) return all;
    const WaitResult result = context.ordering().wait(epoch, kOneVisitNs);
    all.waited = all.waited || result.waited;
    if (!result.worth_repeating()) return all;
  }
}

}  // namespace cupool::engine
