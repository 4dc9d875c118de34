// Recording a trace (CUPOOL_TRACE): a buffer for each thread, merged by time into one file.
#pragma once

#include <cstdint>
#include <string>

#include "trace/event.h"

namespace cupool::trace {

/// What became of the trace of this process.
struct TraceFigures {
  std::string path;           ///< empty: there is none
  std::uint64_t events = 0;   ///< written
  std::uint64_t dropped = 0;  ///< for lack of room, in the file or on the disk
  std::uint64_t bytes = 0;    ///< size of the file
};

/// Begins the trace of this process: into `path`, at most `limit_bytes` long. The file is created
/// with the first events. To be called once. Throws only std::bad_alloc.
void start_trace(const std::string& path, std::uint64_t limit_bytes);

/// Whether frees need a free_done as well.
bool wants_durations() noexcept;

/// Records an event of now in the calling thread: sets its time and thread. Where the buffer is
/// full, this thread writes what all have recorded. Thread-safe. Never throws.
void record(Event event) noexcept;

/// Writes what has been recorded so far. Thread-safe. Never throws.
void flush_trace() noexcept;

/// The same, ends the file and the trace. Says so once if events were dropped.
void finish_trace() noexcept;

/// Throws only std::bad_alloc.
TraceFigures trace_figures();

}  // namespace cupool::trace
