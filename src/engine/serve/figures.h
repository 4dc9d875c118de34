// SPDX-License-Identifier: Apache-2.0
// Figures of the report that need several parts of the engine.
#pragma once

#include <cstdint>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/ipc/exports.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/host_memory.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// Thread-safe.
class Figures {
 public:
  Figures(ContextRegistry& registry, PointerMap& blocks, IpcExports& exports, HostMemory& host,
          AsyncMemory& async)
      : registry_(registry), blocks_(blocks), exports_(exports), host_(host), async_(async) {}

  /// Folds the threads' tallies into the statistics.
  void fold();
  /// As fold(). Also reads the driver's pool figures and counts live memory.
  void refresh();

  /// Idle bytes on the current device, which cudaMemGetInfo reports as free (contract 5).
  std::uint64_t idle_bytes();

  /// Counts calls that cupool does not serve, on the current device.
  void count_null_free();
  void count_in_current_device(stats::Counter counter);

 private:
  ContextRegistry& registry_;
  PointerMap& blocks_;
  IpcExports& exports_;
  HostMemory& host_;
  AsyncMemory& async_;
};

}  // namespace cupool::engine
