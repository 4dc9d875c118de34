// SPDX-License-Identifier: Apache-2.0
// The memory at an address as the program sees it (contract 6). The driver knows more: the whole
// block, the pool that it is of, and blocks that the program has freed.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/block/block.h"
#include "engine/ipc/imports.h"

namespace cupool::engine {

/// What a pointer query finds: a live block of cupool's, memory of another process that is open
/// here, nobody's memory, or none of these, which is the driver's to answer.
struct FoundMemory {
  const Block* live = nullptr;
  /// A live block of page-locked or stream-ordered memory: only its size differs.
  const Block* as_the_drivers = nullptr;
  std::optional<IpcImports::Seen> imported;
  /// A freed block, or bytes of a block beyond the request.
  bool nobodys = false;

  /// Whether cupool serves the memory. Only then are context() and requested() defined.
  bool served() const { return live != nullptr || as_the_drivers != nullptr || imported; }
  CUcontext context() const;
  std::uint64_t requested() const;

  /// Replaces `value`, the driver's answer to a query of `attribute`, by its answer for memory of
  /// cuMemAlloc where the two differ. No effect unless served().
  void answer_as_legacy(CUpointer_attribute attribute, void* value) const;
};

}  // namespace cupool::engine
