// SPDX-License-Identifier: Apache-2.0
// A trace of allocations for the replay: the calls of each thread, and the allocation of each free.
// The format is that of RMM's logging adaptor, which CUPOOL_TRACE writes too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cupool::cli {

/// One call. An allocation and its free have the same `block`.
struct ReplayEvent {
  bool is_free = false;
  std::size_t block = 0;
  std::uint64_t bytes = 0;
};

struct ReplayTrace {
  std::vector<std::vector<ReplayEvent>> threads;  ///< in order of first appearance
  std::size_t blocks = 0;                         ///< block numbers are below this
  std::size_t allocations = 0;
  std::size_t frees = 0;
  std::size_t skipped = 0;       ///< failed allocations, frees of blocks that the trace lacks
  std::uint64_t peak_bytes = 0;  ///< peak of live bytes, in the order of the trace
};

/// Parses a trace. Throws UsageError with file and line if it is not one.
ReplayTrace parse_trace(const std::string& text, const std::string& file);

/// The text of a trace ("-": standard input). Throws UsageError if it cannot be read.
std::string read_trace(const std::string& file);

}  // namespace cupool::cli
