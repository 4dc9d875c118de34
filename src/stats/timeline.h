// When things happened: time since the process began to use the GPU, and the few events that a
// reader of a report wants to see on it. Recorded in slow paths alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/device_stats.h"

namespace cupool::stats {

/// Nanoseconds since the first call in this process, which the start of the engine makes.
/// Monotonic; thread-safe; cannot fail.
std::uint64_t since_start_ns() noexcept;

enum class EventKind : std::uint8_t {
  growth,        ///< the backend gave fresh memory
  give_back,     ///< idle blocks went back to the backend
  trim,          ///< the driver's pool was trimmed
  oom_rescue,    ///< an out-of-memory error was averted
  wait,          ///< a free waited for the GPU for a millisecond or longer
  context_lost,  ///< live bytes went away with a context
  count_
};
inline constexpr std::size_t kEventKinds = static_cast<std::size_t>(EventKind::count_);

/// "growth", "give_back", ...
const char* text_of(EventKind kind) noexcept;

/// One event, or several neighbours of one kind and device that were put together.
struct Event {
  std::uint64_t time_ns = 0;  ///< of the first, see since_start_ns(); a wait: when it ended
  EventKind kind = EventKind::growth;
  int device = -1;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;        ///< of all together; 0 where there are none
  std::uint64_t duration_ns = 0;  ///< of a wait: the longest of them
};

/// A free that waited less is no event.
inline constexpr std::uint64_t kShortestWaitNs = 1'000'000;

/// Records an event of now. Keeps at most 256 of a kind: when they are full, neighbours are put
/// together, so that the whole run stays covered. Takes a lock of its own for some nanoseconds and
/// calls nothing. Thread-safe; cannot fail.
void note_event(EventKind kind, const DeviceStats& device, std::uint64_t bytes,
                std::uint64_t duration_ns = 0) noexcept;

/// All events by time. Throws only std::bad_alloc.
std::vector<Event> events();

/// Forgets all, and begins the time anew; for a forked child, before other threads exist.
void reset_timeline() noexcept;

}  // namespace cupool::stats
