// SPDX-License-Identifier: Apache-2.0
// The waits that frees leave to the program's next call of MPI (engine/reclaim/message_calls).
#pragma once

#include "engine/context/context_registry.h"
#include "engine/reclaim/message_calls.h"
#include "engine/serve/free_policy.h"

namespace cupool::engine {

class IdleMemory;

/// One per process. Thread-safe.
class Messages {
 public:
  Messages(ContextRegistry& registry, IdleMemory& idle, FreePolicy& policy)
      : registry_(registry), idle_(idle), policy_(policy) {}

  /// Before a call of MPI that hands something over: returns when all work is complete that was
  /// submitted before a free which did not wait for it, whichever thread freed. What was submitted
  /// after that free holds nothing up. A few loads if there is nothing to wait for.
  ///
  /// Another thread's free would have kept that thread until its work was complete, while this one
  /// went on; and that work may need what this call brings about. So for others' frees the wait is
  /// limited; if it fails, frees wait from then on.
  void before_call() {
    begin();
    if (MessageCalls::own().any) wait_for_own();
    const std::uint64_t frees = MessageCalls::frees();
    if (!MessageCalls::are_settled(frees)) wait_for_all(frees);
  }

  /// Before a call that only completes what was handed over: the same for the frees of the calling
  /// thread.
  void before_completion() {
    begin();
    if (MessageCalls::own().any) wait_for_own();
  }

  /// Waits for what all frees have left, for `limit_ns` at most. Whether it is complete.
  static bool wait(ContextRegistry& registry, std::uint64_t limit_ns);
  /// MPI was loaded when memory had been freed already: has the next calls wait for all work so
  /// far.
  static void cover(ContextRegistry& registry);

 private:
  void begin() {
    if (policy_.awaits_messages()) learn();
  }
  void learn();
  void wait_for_own();
  void wait_for_all(std::uint64_t frees);

  ContextRegistry& registry_;
  IdleMemory& idle_;
  FreePolicy& policy_;
};

}  // namespace cupool::engine
