// SPDX-License-Identifier: Apache-2.0
// What the order behind frees (engine/context/thread_order) keeps of one thread: where it has work,
// and the points behind which that comes. For that thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/driver.h"
#include "engine/context/points.h"

namespace cupool::engine::thread_work {

inline constexpr std::size_t kStreamsOfThread = 16;
inline constexpr std::size_t kContextsOfThread = 8;

/// One of the thread's streams.
struct Stream {
  /// Blocking streams and the legacy stream of their context wait for one another's earlier work.
  enum class Kind : std::uint8_t { unknown, blocking, non_blocking };

  CUstream handle = nullptr;    ///< null: none, or destroyed
  CUcontext context = nullptr;  ///< null: not known
  std::uint64_t waited = 0;     ///< it comes behind all points up to this number
  std::uint64_t launched = 0;   ///< a dependent launch comes behind all points up to this number
  bool unmarked = false;        ///< has work since the thread's last free
  Kind kind = Kind::unknown;
  Point point;
};

/// All work of a context, where the thread's streams are too many, unknown, or destroyed.
struct Whole {
  CUcontext context = nullptr;
  bool unmarked = false;
  bool of_legacy = false;          ///< the point is there for the legacy stream alone
  std::uint64_t unknown_work = 0;  ///< covered by the point
  Point point;
};

struct State {
  /// Whether any of them has work since the thread's last free.
  bool any_unmarked() const {
    const auto is_unmarked = [](const auto& entry) { return entry.unmarked; };
    return std::any_of(streams.begin(), streams.end(), is_unmarked) ||
           std::any_of(wholes.begin(), wholes.end(), is_unmarked) || unknown_unmarked;
  }

  /// Work of a stream that is not known, behind the thread's last free.
  void add_unknown() {
    ++unknown_work;
    unknown_unmarked = true;
  }

  std::array<Stream, kStreamsOfThread> streams;
  std::array<Whole, kContextsOfThread> wholes;
  std::uint64_t newest = 0;        ///< number of the newest point
  std::uint64_t unknown_work = 0;  ///< calls whose streams are not known
  bool unknown_unmarked = false;   ///< one of them since the thread's last free
  std::size_t next = 0;            ///< the entry to take next, if there are too many streams
  bool many = false;               ///< more streams than entries: contexts are marked as a whole
  bool alternates = false;         ///< counted in `alternating`
};

}  // namespace cupool::engine::thread_work
