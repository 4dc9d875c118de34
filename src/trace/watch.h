// SPDX-License-Identifier: Apache-2.0
// Watchers of every allocation and free of the program: the trace, the list of leaks, NVTX,
// call sites. Without
// watchers, a call costs one check of a flag.
#pragma once

#include <atomic>
#include <cstdint>

#include "trace/event.h"

namespace cupool::trace {

/// Bits of `watchers`.
enum Watcher : unsigned {
  kTrace = 1u,
  kLeaks = 2u,
  kNvtx = 4u,
  kSites = 8u,
  kOtherKinds = 16u,  ///< beside kTrace and kLeaks: they take memory of every kind
};

namespace detail {
extern std::atomic<unsigned> watchers;
}

inline bool watching() noexcept {
  return detail::watchers.load(std::memory_order_relaxed) != 0;
}

inline bool watching(Watcher watcher) noexcept {
  return (detail::watchers.load(std::memory_order_relaxed) & watcher) != 0;
}

/// Whether only call sites are sampled: what is not sampled need not be noted.
inline bool only_samples() noexcept {
  return detail::watchers.load(std::memory_order_relaxed) == kSites;
}

/// Turns a watcher on. Thread-safe.
void add_watcher(Watcher watcher) noexcept;

/// Memory of the program.
struct Memory {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  int device = -1;  ///< -1: not known, and page-locked memory
  MemoryKind kind = MemoryKind::device;
};

/// To be called by the thread that allocates or frees; `start_ns` is the begin of its call
/// (util/clock.h). Thread-safe. Never throw.
void note_allocation(const Memory& memory, std::uint64_t start_ns) noexcept;
void note_allocation_failure(std::uint64_t bytes, std::uint64_t start_ns,
                             MemoryKind kind = MemoryKind::device) noexcept;
/// To be called before the free: afterwards the address may belong to another thread at once.
void note_free(const Memory& memory) noexcept;
/// `refused`: the memory is still live.
void note_free_done(const Memory& memory, std::uint64_t start_ns, bool refused) noexcept;
/// The memory was lost with its context.
void note_lost(const Memory& memory) noexcept;

/// The NVTX range of a call, for the lifetime of the object; no effect without NVTX.
class CallRange {
 public:
  enum class Call { malloc, free };
  CallRange(Call call, std::uint64_t bytes) noexcept;
  ~CallRange();
  CallRange(const CallRange&) = delete;
  CallRange& operator=(const CallRange&) = delete;

 private:
  const bool active_;
};

}  // namespace cupool::trace
