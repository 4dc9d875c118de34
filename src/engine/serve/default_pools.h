// SPDX-License-Identifier: Apache-2.0
// When a device's default pool is kept, and when it is the program's again (CUPOOL_ASYNC). The
// program's stream-ordered allocations and its calls on pools lead here.
#pragma once

#include <atomic>

#include "engine/context/context_registry.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/giving_back.h"
#include "engine/serve/pool_preparation.h"

namespace cupool::engine {

/// One per process. Thread-safe.
class DefaultPools {
 public:
  DefaultPools(ContextRegistry& registry, FreePolicy& policy, PoolPreparation& preparation,
               GiveBacks& give_backs, AsyncMemory& async)
      : registry_(registry),
        policy_(policy),
        preparation_(preparation),
        give_backs_(give_backs),
        async_(async) {}

  /// Whether allocated() may have an effect: on the current device, after an allocation from `pool`
  /// (null: the device's current pool).
  bool are_concerned(CUmemoryPool pool) {
    Context* const context = registry_.current();
    return context != nullptr && context->device().default_pool().may_keep(pool);
  }
  /// The program has allocated from `pool`, as above.
  void allocated(CUmemoryPool pool);

  /// Memory of a default pool is served from now on, whether or not the pool is kept: there will be
  /// idle memory to give back.
  void serves_blocks() { preparation_.pools_serve(); }

  /// The known default pool with this handle, or null.
  DefaultPool* find(CUmemoryPool pool);
  /// The program is about to set the threshold of `pool`, or to trim it, and DefaultPool::claim()
  /// was called.
  void leave(CUmemoryPool pool);
  void leave_all();
  /// No thread gives idle memory back: kept pools are left, and none is kept from now on.
  void keep_none();

  /// Stream-ordered memory that is served.
  AsyncMemory& async() { return async_; }

 private:
  void leave_kept();

  ContextRegistry& registry_;
  FreePolicy& policy_;
  PoolPreparation& preparation_;
  GiveBacks& give_backs_;
  AsyncMemory& async_;
  std::atomic<bool> keeps_none_{false};
};

}  // namespace cupool::engine
