// SPDX-License-Identifier: Apache-2.0
// The allocator: creates the parts that serve a program's memory and joins them. Every route ends
// in one of the parts; none of them knows the route.
#pragma once

#include "config/settings.h"
#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/context/stream_contexts.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/imports.h"
#include "engine/serve/allocations.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/context_ending.h"
#include "engine/serve/default_pools.h"
#include "engine/serve/figures.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/frees.h"
#include "engine/serve/host_memory.h"
#include "engine/serve/idle_memory.h"
#include "engine/serve/out_of_memory.h"
#include "engine/serve/pass_through.h"
#include "engine/serve/peak_sampler.h"
#include "engine/serve/pointer_queries.h"
#include "engine/serve/pool_preparation.h"
#include "engine/serve/sharing.h"
#include "engine/serve/step_aside.h"
#include "engine/serve/synchronization.h"

namespace cupool::engine {

/// One per process, never destroyed. Thread-safe, as are all of its parts.
// Written and read-only members apart. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Allocator {
 public:
  Allocator(const cuda::Driver& driver, const config::Settings& settings);

  /// Allocations of the program.
  Allocations& allocations() { return allocations_; }
  /// Frees of the program.
  Frees& frees() { return frees_; }
  /// Allocations and frees that the driver serves.
  PassThrough& pass_through() { return pass_through_; }
  /// Page-locked memory.
  HostMemory& host() { return host_; }
  /// Second attempts of calls that ran out of device memory.
  OutOfMemory& out_of_memory() { return out_of_memory_; }
  /// Synchronisation by the program.
  Synchronization& synchronization() { return synchronization_; }
  /// Pointer queries and attributes.
  PointerQueries& queries() { return queries_; }
  /// Memory shared between processes.
  Sharing& sharing() { return sharing_; }
  /// The end of contexts.
  ContextEnding& endings() { return endings_; }
  /// The end of serving, for the rest of the process.
  StepAside& step_aside() { return step_aside_; }
  /// The start of the pools and CUPOOL_PREALLOC.
  PoolPreparation& preparation() { return preparation_; }
  /// The pools of the program's own cudaMallocAsync.
  DefaultPools& default_pools() { return default_pools_; }
  /// The wait that a free needs.
  FreePolicy& policy() { return policy_; }
  /// Idle memory; also used by decay.
  IdleMemory& idle() { return idle_; }
  /// Figures of the report.
  Figures& figures() { return figures_; }
  /// All blocks.
  PointerMap& blocks() { return blocks_; }
  /// All contexts and devices.
  ContextRegistry& registry() { return registry_; }
  /// The contexts of streams.
  StreamContexts& streams() { return streams_; }

 private:
  const config::Settings settings_;
  ContextRegistry registry_;
  StreamContexts streams_;
  PointerMap blocks_;
  IpcExports exports_;
  IpcImports imports_;
  FreePolicy policy_;
  IdleMemory idle_;
  HostMemory host_;
  AsyncMemory async_;
  OutOfMemory out_of_memory_;
  PoolPreparation preparation_;
  DefaultPools default_pools_;
  PeakSampler peak_;
  Allocations allocations_;
  Frees frees_;
  PassThrough pass_through_;
  Synchronization synchronization_;
  PointerQueries queries_;
  Sharing sharing_;
  ContextEnding endings_;
  StepAside step_aside_;
  Figures figures_;
};

}  // namespace cupool::engine
