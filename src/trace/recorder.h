// SPDX-License-Identifier: Apache-2.0
// Recording of a trace (CUPOOL_TRACE): one buffer per thread, merged by time into one file.
#pragma once

#include <cstdint>
#include <string>

#include "trace/event.h"

namespace cupool::trace {

/// State of this process's trace.
struct TraceFigures {
  std::string path;           ///< empty: no trace
  std::uint64_t events = 0;   ///< written
  std::uint64_t dropped = 0;  ///< no room in the file or on the disk
  std::uint64_t bytes = 0;    ///< size of the file
};

/// Starts the trace of this process in the file `path`, of at most `limit_bytes`. The file is
/// created with the first events. To be called once. Throws only std::bad_alloc.
void start_trace(const std::string& path, std::uint64_t limit_bytes);

/// Whether the file is a timeline: frees need a free_done as well, and memory of every kind is
/// shown.
bool is_timeline() noexcept;

/// Records an event in the calling thread, and sets its time and thread. If the buffer is full,
/// this thread writes the events of all threads. Thread-safe. Never throws.
void record(Event event) noexcept;

/// Writes all recorded events. Thread-safe. Never throws.
void flush_trace() noexcept;

/// The same, then ends the file and the trace. Warns once if events were dropped.
void finish_trace() noexcept;

/// Throws only std::bad_alloc.
TraceFigures trace_figures();

}  // namespace cupool::trace
