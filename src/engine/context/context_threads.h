// SPDX-License-Identifier: Apache-2.0
// What threads have in a context: caches, which are drained into the ordering and the shared cache,
// and points.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/block/block_cache.h"
#include "engine/context/points.h"
#include "engine/reclaim/ordering.h"
#include "engine/thread/thread_cache_stock.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// The blocks to drain from thread caches.
enum class Drain {
  flush,    ///< none; free batches are flushed into the open epoch
  retired,  ///< as flush, and retired blocks go to the ordering
  all,      ///< as retired, and cached blocks go to the shared cache
};

/// One per context. Thread-safe. A caller that drains is in a visit of the context (ContextGate).
class ContextThreads {
 public:
  ContextThreads(Ordering& ordering, BlockCache& cache, stats::DeviceStats& stats)
      : ordering_(ordering), cache_(cache), stats_(stats) {}

  ThreadCacheStock& caches() { return caches_; }
  ContextPoints& points() { return points_; }

  /// Drains the caches of all threads.
  void drain(Drain what) {
    Drained drained;
    if (what == Drain::flush) {
      caches_.for_each_active([&](ThreadCache& cache) { take_from(cache, what, &drained); });
    } else {
      caches_.for_each([&](ThreadCache& cache) { take_from(cache, what, &drained); });
    }
    take_over(drained);
  }
  /// Drains the caches of threads that did nothing since the last call.
  void drain_idle() {
    Drained drained;
    caches_.for_each([&](ThreadCache& cache) {
      if (cache.lies_idle()) take_from(cache, Drain::all, &drained);
    });
    take_over(drained);
  }
  /// Drains the cache of one thread.
  void drain(ThreadCache& cache, Drain what) {
    Drained drained;
    {
      const ThreadCache::Guard guard(cache);
      take_from(cache, what, &drained);
    }
    take_over(drained);
  }
  /// Folds the threads' tallies into the statistics.
  void fold() {
    caches_.for_each_active([&](ThreadCache& cache) { cache.tally.fold(stats_); });
  }
  /// Folds the tally of one thread.
  void fold(ThreadCache& cache) {
    const ThreadCache::Guard guard(cache);
    cache.tally.fold(stats_);
  }
  /// The context is gone, and no thread is inside: drops all blocks.
  void abandon() {
    caches_.for_each([&](ThreadCache& cache) {
      cache.abandon();
      cache.tally.fold(stats_);
    });
    caches_.delete_unused();
  }

 private:
  /// Blocks drained from caches, held by the draining thread only. Needs no host memory, without
  /// which a block would be in no list any more.
  struct Drained {
    struct Retired {
      EpochNumber epoch = kNoEpoch;
      BlockList blocks;
    };
    // Threads' batches are mostly of the same few epochs.
    static constexpr std::size_t kMostEpochs = 2 * BatchesInFlight::kMost;
    std::array<Retired, kMostEpochs> retired;
    std::size_t epochs = 0;
    BlockList idle;

    // Beyond the places a batch joins the newest one: a later fence also covers older batches, so
    // this costs only time.
    void retire(EpochNumber epoch, BlockList& blocks) {
      Retired* const end = retired.data() + epochs;
      Retired* place = std::find_if(retired.data(), end,
                                    [epoch](const Retired& each) { return each.epoch == epoch; });
      if (place == end && epochs != kMostEpochs) {
        ++epochs;
      } else if (place == end) {
        place = std::max_element(retired.data(), end, [](const Retired& a, const Retired& b) {
          return a.epoch < b.epoch;
        });
      }
      place->epoch = std::max(place->epoch, epoch);
      place->blocks.splice(blocks);
    }
  };
  // The caller holds the cache's lock.
  void take_from(ThreadCache& cache, Drain what, Drained* drained) {
    cache.flush(ordering_.epochs());
    if (what != Drain::flush) {
      cache.batch.expect_free();
      BatchesInFlight::All in_flight = cache.in_flight.pop_all();
      for (BatchesInFlight::Batch& batch : in_flight) {
        BlockList blocks = batch.blocks.pop_all();
        if (!blocks.empty()) drained->retire(batch.epoch, blocks);
      }
    }
    if (what == Drain::all) {
      BlockList idle = cache.idle.pop_all();
      drained->idle.splice(idle);
    }
    cache.tally.fold(stats_);
  }
  void take_over(Drained& drained) {
    for (std::size_t i = 0; i < drained.epochs; ++i) {
      ordering_.adopt(drained.retired[i].epoch, drained.retired[i].blocks);
    }
    if (!drained.idle.empty()) cache_.cache(drained.idle);
  }

  Ordering& ordering_;
  BlockCache& cache_;
  stats::DeviceStats& stats_;
  ThreadCacheStock caches_;
  ContextPoints points_;
};

}  // namespace cupool::engine
