// SPDX-License-Identifier: Apache-2.0
// The wait that frees leave to the program's next call of MPI (engine/reclaim/message_calls).
#pragma once

#include "engine/context/context_registry.h"
#include "engine/reclaim/message_calls.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/idle_memory.h"

namespace cupool::engine {

/// One per process. Thread-safe.
class Messages {
 public:
  Messages(ContextRegistry& registry, IdleMemory& idle, FreePolicy& policy)
      : registry_(registry), idle_(idle), policy_(policy) {}

  /// Before a call of MPI: returns when all work is complete that was submitted before a free which
  /// did not wait for it, whichever thread freed. What was submitted after that free holds nothing
  /// up. Two loads if there is none.
  void before_call() {
    if (policy_.awaits_messages()) idle_.look_for_libraries(IdleMemory::Look::anyway);
    const std::uint64_t frees = MessageCalls::frees();
    if (!MessageCalls::are_settled(frees)) wait_for(frees);
  }

 private:
  void wait_for(std::uint64_t frees);
  static WaitResult wait_in(Context& context, EpochNumber epoch, bool is_current);

  ContextRegistry& registry_;
  IdleMemory& idle_;
  FreePolicy& policy_;
};

}  // namespace cupool::engine
