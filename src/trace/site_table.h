// SPDX-License-Identifier: Apache-2.0
// Sampled allocations by call site, and those that are live, in memory of a fixed size. It may be
// used where the heap may not: a caller can be a handler that interrupted malloc(). For the same
// reason no one waits for its lock for long; what cannot be noted then, of allocations
// and frees, is counted as lost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stats/sites.h"
#include "trace/loaded_modules.h"
#include "trace/python_stack.h"

namespace cupool::trace {

/// A sampled allocation. `weight`: the calls that it stands for.
struct SampledBlock {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  double weight = 0;
  const void* thread = nullptr;  ///< identity of the thread
  std::uint64_t call = 0;        ///< number of the call in its thread
};

/// What is known of a free of a sampled block, to undo it or to add to it.
struct SampledFree {
  SampledBlock block;
  std::uint32_t site = 0;
  bool temporary = false;
};

class SiteTable {
 public:
  static constexpr std::size_t kMostFrames = 64;
  /// A block freed by its thread in so many calls is temporary.
  static constexpr std::uint64_t kTemporaryCalls = 4;

  /// The stack of a sample, innermost first: return addresses, and the calls of Python.
  struct Stack {
    std::size_t depth = 0;
    std::uintptr_t addresses[kMostFrames];
    PythonStack python;
  };

  /// Most sites and live blocks; powers of two.
  struct Limits {
    std::size_t sites = 4096;
    std::size_t live = std::size_t{1} << 17;
  };

  /// A table that is never destroyed. Null without memory for it.
  static SiteTable* create(const Limits& limits) noexcept;

  /// All thread-safe. Never throw; bounded waits.
  void allocated(const Stack& stack, const SampledBlock& block) noexcept;
  /// False: the block is not a sampled one.
  bool freed(std::uint64_t address, const void* thread, std::uint64_t call,
             SampledFree* out) noexcept;
  void undo(const SampledFree& done) noexcept;
  void waited(const SampledFree& done) noexcept;

  /// Whether the block at `address` may be a sampled one: a byte for each of many hashes.
  bool may_hold(std::uint64_t address) const noexcept {
    return filter_[hash_of(address) >> (64 - kFilterBits)].load(std::memory_order_relaxed) != 0;
  }

  /// False: the lock's holder was interrupted for good. Throws only std::bad_alloc.
  bool read(stats::Sites* out);

 private:
  static constexpr unsigned kFilterBits = 16;

  struct Site {
    std::uint64_t hash;
    std::uint64_t peak_number;  ///< of the peak that peak_bytes is of; if not the last: live_bytes
    stats::SiteFigures figures;
    std::uint32_t depth;  ///< 0: free, or the entry of all others
    std::uint64_t frames[kMostFrames];
  };
  struct Live {
    SampledBlock block;  ///< address 0: free
    std::uint32_t site;
  };
  class Lock;

  /// Counts what could not be noted.
  void lose() noexcept { lost_.fetch_add(1, std::memory_order_relaxed); }
  static std::uint64_t hash_of(std::uint64_t address) noexcept {
    return (address >> 8) * std::uint64_t{0x9e3779b97f4a7c15};
  }
  std::uint32_t site_of(const Stack& stack) noexcept;
  std::size_t frames_of(const Stack& stack, std::uint64_t* frames) noexcept;
  Live* find_live(std::uint64_t address) noexcept;
  void insert_live(const SampledBlock& block, std::uint32_t site) noexcept;
  void erase_live(Live* entry) noexcept;
  void end_live(Live* entry) noexcept;
  void change_live(std::uint32_t site, const SampledBlock& block, double sign) noexcept;
  void raise_filter(std::uint64_t address, int by) noexcept;

  std::atomic<std::uint32_t> lock_;
  std::atomic<std::uint64_t> lost_;
  std::uint64_t unfollowed_;
  Limits limits_;
  std::size_t sites_used_;
  std::size_t live_used_;
  double live_bytes_;
  double peak_bytes_;
  std::uint64_t peak_number_;
  LoadedModules modules_;
  PythonFrames python_;
  std::atomic<std::uint8_t> filter_[std::size_t{1} << kFilterBits];
  Live* live_;
  Site* sites_;  ///< the first is for all others
};

}  // namespace cupool::trace
