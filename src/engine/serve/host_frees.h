// SPDX-License-Identifier: Apache-2.0
// Frees of page-locked memory that cupool has served: what a free waits for, and when its block may
// be handed out again. Read with docs/design.md, section Page-locked host memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "engine/host/host_cache.h"
#include "engine/reclaim/patience.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/host_blocks.h"
#include "engine/serve/idle_memory.h"

namespace cupool::engine {

/// Part of HostMemory. Thread-safe.
class HostFrees {
 public:
  HostFrees(const cuda::Driver& driver, FreePolicy& policy, IdleMemory& idle, HostBlocks& blocks,
            HostCache& cache)
      : driver_(driver), policy_(policy), idle_(idle), blocks_(blocks), cache_(cache) {}

  /// Frees a block whose state was `word`, of a context that cupool serves. `std::nullopt`: no
  /// effect that lasts; the driver frees it.
  std::optional<CUresult> free(Block& block, std::uint64_t word);

  /// Records a fence and looks whether the GPU has come to it. True: it has nothing else to do.
  bool settle(Context& context);
  /// As settle(), and waits for the GPU within `patience`, in short visits.
  bool settle(Context& context, Patience& patience);

  /// Has the driver free idle blocks, one by one, up to the one that reaches `most_bytes`: the GPU
  /// was just seen to have nothing to do, in a visit of `context` that still lasts. Stops before
  /// the driver's free would wait: once `is_quiet()` is false, or the context ends. Returns the
  /// bytes.
  template <typename IsQuiet>
  std::uint64_t release(Context& context, HostCache::Which which, std::uint64_t most_bytes,
                        const IsQuiet& is_quiet) {
    constexpr std::uint64_t kOne = 1;
    const std::uint64_t life = context.incarnation();
    GivingBack part(idle_.give_backs());
    std::uint64_t released = 0;
    while (released < most_bytes && (released == 0 || is_quiet()) && !context.ends() &&
           context.incarnation() == life) {
      BlockList one = cache_.take(which, kOne);
      if (one.empty()) break;
      released += one.bytes;
      blocks_.release(*one.pop());
      part.gave_back = true;
    }
    return released;
  }

  /// Called once, by the first call that caches a block.
  void when_it_caches(void (*call)()) { first_cached_.store(call, std::memory_order_release); }

 private:
  std::optional<CUresult> free_claimed(Block& block, std::uint64_t life);
  template <typename Put>
  std::optional<CUresult> put(Block& block, std::uint64_t life, const Put& put);
  std::nullopt_t leave_to_driver(Block& block, std::uint64_t life);
  void drop_lost(Block& block);
  bool make_room(Context& context, std::uint64_t bytes);
  bool is_crowded(Context& context, const Block& block);
  bool verify_nothing(Context& context);
  bool keeps_order(Context& context) const;
  void end_zero_copy(const Block& block);

  const cuda::Driver& driver_;
  FreePolicy& policy_;
  IdleMemory& idle_;
  HostBlocks& blocks_;
  HostCache& cache_;
  std::atomic<unsigned> suspicions_{0};
  std::atomic<void (*)()> first_cached_{nullptr};
};

}  // namespace cupool::engine
