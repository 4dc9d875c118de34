// SPDX-License-Identifier: Apache-2.0
// The open visits of each thread, one inside the other.
#include "engine/context/context_visit.h"

#include "engine/context/context.h"
#include "engine/context/primary_contexts.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {
namespace {

// The calling thread's innermost open visit.
thread_local ContextVisit* innermost;

// Around all visits of a thread that waits at no gate: only its address counts.
alignas(ContextVisit) unsigned char place[sizeof(ContextVisit)];
ContextVisit* const nowhere = reinterpret_cast<ContextVisit*>(place);

}  // namespace

VisitsWithoutWait::VisitsWithoutWait() {
  innermost = nowhere;
}

VisitsWithoutWait::~VisitsWithoutWait() {
  innermost = nullptr;
}

unsigned ContextVisit::of_this_thread(const ContextGate& gate) {
  unsigned visits = 0;
  for (const ContextVisit* visit = innermost; visit != nullptr && visit != nowhere;
       visit = visit->outer_) {
    visits += visit->gate_ == &gate && visit->entered_ ? 1 : 0;
  }
  return visits;
}

bool ContextVisit::any_of_this_thread() {
  return innermost != nullptr && innermost != nowhere;
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

namespace {

// Of the thread that ends the context.
unsigned visits_that_stay(Context& context) {
  const bool anybodys =
      CUPOOL_MUTATED("resets-beside-visitors") &&
      PrimaryContexts::of_process().known(context.device().ordinal()) == context.handle();
  return anybodys ? ~0u : ContextVisit::of_this_thread(context.gate());
}

}  // namespace

// A signal handler that interrupted a visit may run the program's exit handlers, and these may end
// the context of that visit.
ContextEnd::ContextEnd(Context& context)
    : gate_(context.gate()), alone_(gate_.close(visits_that_stay(context))) {
  if (alone_) return;
  CUPOOL_WARN_ONCE(
      "the program destroys a context while another call still uses it: cupool's blocks of that "
      "context are set aside. Let all calls return before destroying the context");
}

ContextEnd::~ContextEnd() {
  gate_.open();
}

}  // namespace cupool::engine
