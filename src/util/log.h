// Messages to the person who runs the program: levels, one line each, standard error or a file.
// A preloaded library is a guest: nothing exists before the first message, a disabled message costs
// one relaxed load, and a forked child never meets a lock that its parent held.
#pragma once

#include <atomic>

namespace cupool::log {

/// How much is said. A message is written if its level is at most the configured one; `off` is
/// silence.
enum class Level : int { off = 0, error, warn, info, debug, trace };

namespace detail {
extern std::atomic<int> threshold;
}

/// Sets the level and the destination: `file_pattern` (see util/path_pattern.h) or, if null or
/// empty, standard error. Nothing is opened here; the file is opened for each message (appended to,
/// closed again), so that a program which closes or reuses descriptors loses nothing. A file that
/// cannot be written is reported once on standard error, which then takes the messages.
/// Thread-safe; the default is `warn` on standard error. Never throws.
void configure(Level level, const char* file_pattern) noexcept;

/// Whether a message of this level would be written. One relaxed load. Thread-safe.
inline bool enabled(Level level) noexcept {
  return level != Level::off &&
         static_cast<int>(level) <= detail::threshold.load(std::memory_order_relaxed);
}

/// Writes `cupool[pid] warning: text` as one write(2), so that lines of several threads and
/// processes do not mix. Text beyond 2000 bytes is cut. Keeps errno. Thread-safe, safe in a forked
/// child; not async-signal-safe. Never throws: a message that cannot be written is dropped.
void write(Level level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace cupool::log

/// Writes a message if its level is enabled; arguments are not evaluated otherwise.
/// `level` is the bare name: CUPOOL_LOG(warn, "pool of device %d: %s", ordinal, text).
#define CUPOOL_LOG(level, ...)                                        \
  do {                                                                \
    if (::cupool::log::enabled(::cupool::log::Level::level)) {        \
      ::cupool::log::write(::cupool::log::Level::level, __VA_ARGS__); \
    }                                                                 \
  } while (0)

/// A warning that this place in the source gives once in the life of the process (a forked child
/// inherits that it was given). Thread-safe.
#define CUPOOL_WARN_ONCE(...)                                         \
  do {                                                                \
    static ::std::atomic<bool> cupool_warned{false};                  \
    if (::cupool::log::enabled(::cupool::log::Level::warn) &&         \
        !cupool_warned.exchange(true, ::std::memory_order_relaxed)) { \
      ::cupool::log::write(::cupool::log::Level::warn, __VA_ARGS__);  \
    }                                                                 \
  } while (0)
