// SPDX-License-Identifier: Apache-2.0
// Messages to the user of the program: levels, one line each, to standard error or a file. A
// preloaded library is a guest: nothing is created before the first message, a disabled message
// costs one relaxed load, and a forked child never waits for a lock of its parent.
#pragma once

#include <atomic>

namespace cupool::log {

/// Verbosity. A message is written if its level is at most the configured one; `off` writes none.
enum class Level : int { off = 0, error, warn, info, debug, trace };

namespace detail {
extern std::atomic<int> threshold;
}

/// Sets the level and the destination: `file_pattern` (see util/path_pattern.h) or, if null or
/// empty, standard error. Nothing is opened here. Each message opens the file, appends and closes
/// it, so a program that closes or reuses descriptors loses nothing. If the file cannot be written,
/// standard error gets one warning and then the messages. A full destination (a FIFO) is waited for
/// once, for two seconds, and again only after it has accepted a message. Thread-safe; the default
/// is `warn` on standard error. Never throws.
void configure(Level level, const char* file_pattern) noexcept;

/// Whether a message of this level would be written. One relaxed load. Thread-safe.
inline bool enabled(Level level) noexcept {
  return level != Level::off &&
         static_cast<int>(level) <= detail::threshold.load(std::memory_order_relaxed);
}

/// Writes `cupool[pid] warning: text` as one write(2), so that lines of several threads and
/// processes do not mix. Text is truncated after 2000 bytes. Preserves errno. Thread-safe, safe in
/// a forked child; not async-signal-safe. Never throws: a message that cannot be written is
/// dropped.
void write(Level level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

/// The same for an unformatted text, if the level is enabled, without lock and heap: for the end of
/// a process, where both may be held for ever.
void write_at_once(Level level, const char* text) noexcept;

}  // namespace cupool::log

/// Writes a message if its level is enabled; arguments are not evaluated otherwise.
/// `level` is the bare name: CUPOOL_LOG(warn, "pool of device %d: %s", ordinal, text).
#define CUPOOL_LOG(level, ...)                                        \
  do {                                                                \
    if (::cupool::log::enabled(::cupool::log::Level::level)) {        \
      ::cupool::log::write(::cupool::log::Level::level, __VA_ARGS__); \
    }                                                                 \
  } while (0)

/// A warning that this place in the source writes once per process; a forked child inherits that.
/// Thread-safe.
#define CUPOOL_WARN_ONCE(...)                                         \
  do {                                                                \
    static ::std::atomic<bool> cupool_warned{false};                  \
    if (::cupool::log::enabled(::cupool::log::Level::warn) &&         \
        !cupool_warned.exchange(true, ::std::memory_order_relaxed)) { \
      ::cupool::log::write(::cupool::log::Level::warn, __VA_ARGS__);  \
    }                                                                 \
  } while (0)
