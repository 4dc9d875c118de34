// SPDX-License-Identifier: Apache-2.0
// Time since the process began to use the GPU, and the events of a report on it. Recorded only in
// slow paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/device_stats.h"

namespace cupool::stats {

/// Nanoseconds since the first call in this process, made by the start of the engine. Monotonic;
/// thread-safe; cannot fail.
std::uint64_t since_start_ns() noexcept;

enum class EventKind : std::uint8_t {
  growth,        ///< fresh memory from the backend
  give_back,     ///< cached blocks released to the backend
  trim,          ///< trim of the driver's pool
  oom_rescue,    ///< an averted out-of-memory error
  wait,          ///< a free's wait for the GPU of a millisecond or longer
  context_lost,  ///< live bytes lost with a context
  count_
};
inline constexpr std::size_t kEventKinds = static_cast<std::size_t>(EventKind::count_);

/// "growth", "give_back", ...
const char* text_of(EventKind kind) noexcept;

/// One event, or several merged neighbours of one kind and device.
struct Event {
  std::uint64_t time_ns = 0;  ///< of the first, see since_start_ns(); for a wait, its end
  EventKind kind = EventKind::growth;
  int device = 0;  ///< ordinal; -1: not known
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;        ///< sum; 0 if not applicable
  std::uint64_t duration_ns = 0;  ///< longest wait
};

/// Shorter waits of a free are not recorded.
inline constexpr std::uint64_t kShortestWaitNs = 1'000'000;

/// Records an event at the current time. Keeps at most 256 of a kind; beyond that, neighbours are
/// merged, so that the whole run stays covered. Holds its own lock for some nanoseconds.
/// Thread-safe; cannot fail.
void note_event(EventKind kind, const DeviceStats& device, std::uint64_t bytes,
                std::uint64_t duration_ns = 0) noexcept;

/// All events by time. Throws only std::bad_alloc.
std::vector<Event> events();

/// Drops all events and restarts the time; for a forked child, before other threads exist.
void reset_timeline() noexcept;

}  // namespace cupool::stats
