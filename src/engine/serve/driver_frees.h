// SPDX-License-Identifier: Apache-2.0
// Frees that need the driver's answer: during a capture, and after the engine has stepped aside.
#pragma once

#include <optional>

#include "engine/block/pointer_map.h"
#include "engine/serve/free_wait.h"
#include "engine/serve/idle_memory.h"
#include "engine/serve/retire.h"

namespace cupool::engine {

/// Thread-safe. `std::nullopt`: not cupool's memory; the caller makes the real call.
class DriverFrees {
 public:
  DriverFrees(const cuda::Driver& driver, PointerMap& blocks, IdleMemory& idle)
      : driver_(driver), blocks_(blocks), idle_(idle) {}

  /// Frees `address` if a block of cupool begins there. First frees a spare block by the driver,
  /// before the program's block is claimed, so a refusal has no side effect. That free waits for
  /// all work submitted before, so the claimed block can be reclaimed at once.
  std::optional<CUresult> free_as_driver(CUdeviceptr address);

  /// Refuses a free of `address` with the driver's `answer`, if it is a block of cupool.
  std::optional<CUresult> refuse(CUdeviceptr address, CUresult answer);

  /// The driver's refusal of a stream-ordered free (Frees::refuse_in_stream()).
  std::optional<CUresult> refuse_in_stream(CUdeviceptr address,
                                           CUresult (*free)(CUdeviceptr, CUstream),
                                           CUstream stream);

 private:
  Block* block_of_ours(CUdeviceptr address) const;
  void retire_claimed(const ClaimedBlock& claimed, bool has_waited);
  bool is_of_current(const Context& context, CUresult error) const;
  static CUresult refused_by_driver(Context& context, CUresult answer);

  const cuda::Driver& driver_;
  PointerMap& blocks_;
  IdleMemory& idle_;
};

}  // namespace cupool::engine
