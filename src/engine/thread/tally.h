// SPDX-License-Identifier: Apache-2.0
// A thread's counts that are not yet in the statistics.
#pragma once

#include <cstdint>

#include "stats/device_stats.h"
#include "stats/thread_figures.h"

namespace cupool::engine {

/// The counts that a fold resets.
struct TallyFigures {
  std::uint64_t mallocs = 0;
  std::uint64_t malloc_bytes = 0;     ///< as requested
  std::uint64_t malloc_capacity = 0;  ///< of these blocks
  std::uint64_t frees = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t free_capacity = 0;
  std::int64_t application_high = 0;  ///< highest value of application()
  std::int64_t reclaimed = 0;         ///< bytes that became cached after they were retired
};

/// The counts of a thread that are not yet in the statistics.
struct Tally : TallyFigures {
  stats::SizeTally sizes;
  stats::ThreadFigures* owner = nullptr;  ///< owner of these figures; kept by a fold
  std::uint64_t told_calls = 0;           ///< calls already in the statistics; kept by a fold

  /// Requested bytes of allocations minus those of frees.
  std::int64_t application() const { return static_cast<std::int64_t>(malloc_bytes - free_bytes); }

  void count_malloc(std::uint64_t bytes, std::uint64_t capacity) {
    ++mallocs;
    malloc_bytes += bytes;
    malloc_capacity += capacity;
    sizes.record(bytes);
    if (application() > application_high) application_high = application();
  }
  void count_free(std::uint64_t bytes, std::uint64_t capacity) {
    ++frees;
    free_bytes += bytes;
    free_capacity += capacity;
  }
  /// Whether the program's bytes have grown or shrunk by more than `most_bytes`.
  bool is_due(std::int64_t most_bytes) const { return is_due_after(0, most_bytes); }
  /// As is_due(), after a further change by `bytes`.
  bool is_due_after(std::int64_t bytes, std::int64_t most_bytes) const {
    return static_cast<std::uint64_t>(application() + bytes + most_bytes) >
           static_cast<std::uint64_t>(2 * most_bytes);
  }
  /// Calls since the cache was made.
  std::uint64_t calls() const { return told_calls + mallocs + frees; }
  /// Whether there are enough calls for a fold.
  bool is_long() const { return mallocs + frees > 4096; }
  /// Adds all counts to `stats` and resets them.
  void fold(stats::DeviceStats& stats);
};

}  // namespace cupool::engine
