// SPDX-License-Identifier: Apache-2.0
// Freeing a block: the block is retired, and the call waits if the policy requires it.
#pragma once

#include <optional>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/serve/driver_frees.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/free_wait.h"
#include "engine/serve/retire.h"

namespace cupool::engine {

/// Thread-safe. `std::nullopt`: not cupool's memory; the caller makes the real call.
class Frees {
 public:
  Frees(const cuda::Driver& driver, ContextRegistry& registry, PointerMap& blocks,
        FreePolicy& policy, IdleMemory& idle)
      : driver_(driver),
        registry_(registry),
        blocks_(blocks),
        policy_(policy),
        idle_(idle),
        wait_(idle),
        driver_frees_(driver, blocks, idle) {}

  /// Frees `address` if a block of cupool begins there. Returns the driver's result, also for a
  /// double free and after a sticky error.
  std::optional<CUresult> try_free(CUdeviceptr address);

  /// Frees `address` if a live block of cupool begins there; for the runtime short cuts. False: no
  /// side effect, the real function answers.
  bool try_free_live(CUdeviceptr address);

  /// Stream-ordered free, which accepts memory of cudaMalloc too (contract 12). The block is
  /// retired behind the pending work of `stream`, of whatever context, and the caller does not
  /// wait. `stream` must not capture.
  std::optional<CUresult> try_free_in_stream(CUdeviceptr address, CUstream stream);

  /// During a capture in the process: the driver's refusal of a stream-ordered free of `address`,
  /// if it is a block of cupool (contract 9).
  std::optional<CUresult> refuse_in_stream(CUdeviceptr address,
                                           CUresult (*free)(CUdeviceptr, CUstream),
                                           CUstream stream) {
    return driver_frees_.refuse_in_stream(address, free, stream);
  }

  /// Completes a free whose block the hot path has claimed.
  CUresult free_claimed_otherwise(const ClaimedBlock& claimed);

 private:
  using Waited = FreeWait::Waited;

  CUresult refusal_of(CUstream stream) const;
  std::optional<CUresult> free_closed(CUdeviceptr address);
  // Of a block whose context ends meanwhile they touch nothing, and succeed (ClaimedBlock).
  CUresult free_claimed(const ClaimedBlock& claimed);
  static bool add_to_batch(ThreadCache& cache, const ClaimedBlock& claimed);
  bool free_in_lane(ThreadCache& cache, const ClaimedBlock& claimed, Waited waited);
  CUresult free_waiting(const ClaimedBlock& claimed, FreePolicy::Wait::For what);
  /// How the thread's next work comes behind its work so far: by points (ThreadOrder), or because
  /// this free waits for the context.
  enum class Order { by_points, by_wait };
  CUresult free_singly(const ClaimedBlock& claimed, std::uint64_t start_ns,
                       Order order = Order::by_points, Waited waited = Waited::no);
  CUresult end_batch(const ClaimedBlock& claimed, ThreadCache& cache, Waited waited);
  CUresult end_batch(const ClaimedBlock& claimed, ThreadCache& cache, std::uint64_t start_ns,
                     Waited waited);
  CUresult finish_free(const ClaimedBlock& claimed, const HostWork::Mark& before, EpochNumber epoch,
                       Order order, Waited waited);
  /// `waited` becomes no_and_counted where the free is counted.
  bool keeps_order(Context& context, Waited& waited) const;
  bool marks_order(Context& context, Waited& waited) const;
  /// Whether a free that waits for no more than this leaves a wait to the program's next message
  /// (engine/serve/messages).
  bool leaves_wait(FreePolicy::Wait::For waits_for) const;
  static void leave_wait_to_messages(Context& context, EpochNumber epoch);

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  PointerMap& blocks_;
  FreePolicy& policy_;
  IdleMemory& idle_;
  FreeWait wait_;
  DriverFrees driver_frees_;
};

}  // namespace cupool::engine
