// SPDX-License-Identifier: Apache-2.0
// The allocator's part in sharing memory with other processes (docs/design.md, IPC).
#pragma once

#include <optional>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/imports.h"
#include "engine/serve/out_of_memory.h"

namespace cupool::engine {

/// Thread-safe. `std::nullopt`: not cupool's; the caller makes the real call.
class Sharing {
 public:
  Sharing(const cuda::Driver& driver, ContextRegistry& registry, PointerMap& blocks,
          IpcExports& exports, IpcImports& imports, OutOfMemory& out_of_memory)
      : driver_(driver),
        registry_(registry),
        blocks_(blocks),
        exports_(exports),
        imports_(imports),
        out_of_memory_(out_of_memory) {}

  /// Makes an IPC handle for the block that contains `address`, if it is live and of a pool that
  /// can be shared.
  std::optional<CUresult> try_export(CUdeviceptr address, CUipcMemHandle* handle);

  /// Opens `handle` in the current context if cupool made it, in any process.
  std::optional<CUresult> try_import(const CUipcMemHandle& handle, CUdeviceptr* address);

  /// Open memory of other processes.
  IpcImports& imports() { return imports_; }

 private:
  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  PointerMap& blocks_;
  IpcExports& exports_;
  IpcImports& imports_;
  OutOfMemory& out_of_memory_;
};

}  // namespace cupool::engine
