// SPDX-License-Identifier: Apache-2.0
// Blocks that the GPU no longer uses: cached for the next allocation, or released to the backend.
#pragma once

#include <atomic>

#include "config/settings.h"
#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/ipc/exports.h"
#include "engine/reclaim/serving.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/giving_back.h"
#include "util/mutation.h"

namespace cupool::engine {

/// One per process. Thread-safe.
class IdleMemory {
 public:
  IdleMemory(const config::Settings& settings, ContextRegistry& registry, PointerMap& blocks,
             IpcExports& exports, FreePolicy& policy)
      : settings_(settings),
        registry_(registry),
        blocks_(blocks),
        exports_(exports),
        policy_(policy) {}

  /// Looks for newly loaded libraries that matter. With an RDMA library in the process, `auto`
  /// means plain memory, and frees as settle_free_mode() decides, because such hardware
  /// reaches device memory without a driver call. Idle blocks are released first. With a library
  /// that submits work unseen there is no lane. Called at each fresh block, fence and mark, and at
  /// the first call of MPI.
  enum class Look { if_added, anyway };
  void look_for_libraries(Look look = Look::if_added);

  /// With an RDMA library in the process, and CUPOOL_FREE_MODE=auto: decides whether frees wait.
  /// They do not, if only MPI uses such libraries, and its calls are seen
  /// (engine/reclaim/message_calls).
  void settle_free_mode();

  /// Caches blocks that were reclaimed by other calls than Ordering::poll().
  void cache_reclaimed(Context& context);

  /// Caches reclaimed blocks. Blocks that hardware may know, and the excess over CUPOOL_MAX_CACHED,
  /// are released. The caller is in a visit.
  void cache_or_release(Context& context, BlockList& reclaimed);

  /// Whether a block freed in a lane may be cached at once (engine/reclaim/lane).
  static bool is_reusable_in_lane(Device& device, const Block& block) {
    return block.source == BlockSource::pool && is_wanted(device, block);
  }

  /// Retires the cached blocks that the GPU may still use, because they were freed in a lane. The
  /// others stay. The caller is in a visit.
  void retire_cached(Context& context);

  /// Releases blocks as release() does, but for those that the GPU may still use, which stay
  /// cached.
  void release_complete(Context& context, BlockList& idle);

  /// Releases blocks that the statistics count as cached; those that the GPU may still use are
  /// retired instead. The caller is in a visit.
  void release(Context& context, BlockList& idle);

  /// Reclaims the calling thread's complete batches, and the batch that it is filling if that is
  /// `waited_for`, which the program has waited for. False: none.
  bool reclaim(Context& context, ThreadCache& cache, BatchNumber waited_for = kNoBatch);

  /// Releases idle blocks whose room managed memory may need. The caller is in a visit.
  ///
  /// Managed memory takes device memory when a kernel touches it. The driver can evict other
  /// managed memory for it, but not cupool's idle memory, so the kernel would fail (measured). Idle
  /// bytes therefore stay below the room that live blocks and all managed memory leave.
  void leave_room_for_managed(Context& context);

  /// Releases memory whose importers have all closed it. True: there was some.
  bool release_ended_leases();

  /// The driver has refused a call in `context` (null: none that is known), begun in its `life`,
  /// and the program knows the error, so that no later call may hide a sticky one (I7). Where there
  /// are several contexts it may be another one's.
  void driver_refused(Context* context, std::uint64_t life, CUresult error);

  GiveBacks& give_backs() { return give_backs_; }

 private:
  static bool is_wanted(Device& device, const Block& block) {
    const bool shared = block.shared_outside.load(std::memory_order_relaxed) &&
                        !CUPOOL_MUTATED("shared-served-again");
    return !shared && device.may_cache(block) && !Serving::stepped_aside();
  }
  static BlockList pop_pending(Context& context, BlockList& cached);
  static void retire_pending(Context& context, BlockList& cached);
  bool is_leased(Block& block);
  void release_listed_leases();
  static bool stays_exported(Block& block);
  void trim_gathered(Context& context);

  const config::Settings& settings_;
  ContextRegistry& registry_;
  PointerMap& blocks_;
  IpcExports& exports_;
  FreePolicy& policy_;
  alignas(128) GiveBacks give_backs_;  // written by every release
  std::atomic<bool> rdma_library_found_{false};
};

}  // namespace cupool::engine
