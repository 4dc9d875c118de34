// A trace of allocations as the replay plays it: what each thread does, and which allocation each
// free belongs to. The format is that of RMM's logging adaptor, which CUPOOL_TRACE writes.
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
  std::vector<std::vector<ReplayEvent>> threads;  ///< by first appearance; events in their order
  std::size_t blocks = 0;                         ///< numbers that blocks have
  std::size_t allocations = 0;
  std::size_t frees = 0;
  std::size_t skipped = 0;       ///< allocations that had failed, frees of what is not in the trace
  std::uint64_t peak_bytes = 0;  ///< live at once, in the order of the trace
};

/// Reads the rows. Throws UsageError with file and line for what is not such a trace.
ReplayTrace parse_trace(const std::string& text, const std::string& file);
ReplayTrace read_trace(const std::string& file);

}  // namespace cupool::cli
