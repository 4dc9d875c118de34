// SPDX-License-Identifier: Apache-2.0
// Shares of CUPOOL_MAX_PENDING and CUPOOL_MAX_CACHED.
#include "engine/serve/thread_limits.h"

#include <algorithm>

#include "engine/block/accounting.h"

namespace cupool::engine {

ThreadCache::Limits limits_of_thread(Context& context) {
  constexpr std::uint64_t kMostCached = 64ull << 20;
  constexpr std::uint64_t kLargestBatch = 16ull << 20;
  constexpr std::uint64_t kLargestOfFew = 64ull << 20;
  constexpr std::uint64_t kMostInLane = 32ull << 20;
  constexpr std::size_t kManyBlocks = 2048;
  constexpr std::uint64_t kLeastTally = 1ull << 20;
  constexpr std::uint64_t kLargestTally = 8ull << 20;
  const DeviceLimits& all = context.device().limits();
  const std::uint64_t threads = std::max<std::size_t>(context.threads().caches().in_use(), 1);
  ThreadCache::Limits limits;
  const bool much = all.max_pending > context.device().total_bytes() / 8;
  if (much) limits.blocks = kManyBlocks;
  limits.few = std::min(all.max_pending / std::max<std::uint64_t>(16, 4 * threads),
                        much ? std::max(kLargestOfFew, all.max_pending / 1024) : kLargestOfFew);
  limits.batch =
      std::min(limits.few, much ? std::max(kLargestBatch, all.max_pending / 1024) : kLargestBatch);
  // All waiting batches may be reclaimed at once.
  limits.cached = std::min({std::max(kMostCached, kBatchesWaiting * limits.batch),
                            all.max_pending / threads, all.max_cached / threads});
  limits.lane = std::min(limits.cached, kMostInLane);
  context.device().budget().set_batches(
      std::min(threads * kBatchesPending * limits.batch, all.max_pending));
  limits.tally = signed_bytes(std::clamp(limits.batch, kLeastTally, kLargestTally));
  return limits;
}

}  // namespace cupool::engine
