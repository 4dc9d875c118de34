// SPDX-License-Identifier: Apache-2.0
// Exported: the test controls of cupool_sim.h.
#include <cupool_sim.h>

#include <cstdlib>
#include <cstring>

#include "driver/calls.h"
#include "driver/entry.h"

#define SIM_CONTROL extern "C" __attribute__((visibility("default")))

namespace cupool::sim {

SIM_CONTROL unsigned long long cupoolSimCalls(const char* symbol) {
  return calls_of(symbol);
}

SIM_CONTROL void cupoolSimFail(const char* rules) {
  world();  // its creation reads the environment's rules, which these replace
  if (!set_faults(rules)) std::abort();
}

SIM_CONTROL int cupoolSimSet(const char* name, const char* value) {
  World& w = world();
  Lock lock(w.mutex);
  if (std::strcmp(name, "mode") == 0) {
    Mode mode;
    if (!parse_mode(value, &mode)) return -1;
    w.engine.change_mode(lock, &w.settings.mode, mode);
    return 0;
  }
  if (std::strcmp(name, "judge") == 0) return parse_judge(value, &w.settings.judge) ? 0 : -1;
  if (std::strcmp(name, "polls") == 0) return w.settings.polls = std::atoi(value), 0;
  if (std::strcmp(name, "late_refusals") == 0) {
    return w.settings.late_refusals = std::strcmp(value, "1") == 0, 0;
  }
  if (std::strcmp(name, "deadlock_ms") == 0) {
    return parse_milliseconds(value, &w.settings.deadlock_ms) ? 0 : -1;
  }
  if (std::strcmp(name, "deadlock_watch") == 0 && std::strcmp(value, "1") == 0) {
    w.engine.watch_for_deadlocks();
    return 0;
  }
  if (std::strcmp(name, "context_event_forgets") == 0) {
    return parse_forgets(value, &w.settings.context_event_forgets) ? 0 : -1;
  }
  return -1;
}

SIM_CONTROL void cupoolSimOwner(const void* ptr, size_t size, unsigned long long owner) {
  World& w = world();
  Lock lock(w.mutex);
  w.judge.set_owner(reinterpret_cast<uintptr_t>(ptr), size, owner);
}

SIM_CONTROL void cupoolSimHostAccess(const void* ptr, size_t size, int write) {
  World& w = world();
  Lock lock(w.mutex);
  w.judge.host_access(reinterpret_cast<uintptr_t>(ptr), size, write != 0);
}

SIM_CONTROL unsigned long long cupoolSimComplaints(void) {
  World& w = world();
  Lock lock(w.mutex);
  return w.judge.complaints();
}

SIM_CONTROL const char* cupoolSimLastComplaint(void) {
  World& w = world();
  Lock lock(w.mutex);
  return w.judge.last_complaint();
}

SIM_CONTROL int cupoolSimSticky(void* handle) {
  World& w = world();
  Lock lock(w.mutex);
  const Context* const context = handle == nullptr
                                     ? current_context().context
                                     : w.known_context(static_cast<CUcontext>(handle));
  return context == nullptr ? -1 : static_cast<int>(context->sticky);
}

SIM_CONTROL unsigned long long cupoolSimPending(void) {
  World& w = world();
  Lock lock(w.mutex);
  return w.engine.pending();
}

SIM_CONTROL unsigned long long cupoolSimLateReturns(void) {
  return calls_that_returned_late();
}

SIM_CONTROL unsigned long long cupoolSimInvalidatedCaptures(void) {
  World& w = world();
  Lock lock(w.mutex);
  return w.captures.invalidated();
}

SIM_CONTROL unsigned cupoolSimProgramCall(const char* symbol) {
  if (symbol == nullptr) return end_program_call();
  begin_program_call(symbol);
  return 0;
}

SIM_CONTROL unsigned long long cupoolSimCapturesInvalidatedByOthers(void) {
  World& w = world();
  Lock lock(w.mutex);
  return w.captures.invalidated_by_others();
}

SIM_CONTROL const char* cupoolSimLastInvalidatedByOthers(void) {
  World& w = world();
  Lock lock(w.mutex);
  return w.captures.last_by_others().c_str();
}

}  // namespace cupool::sim
