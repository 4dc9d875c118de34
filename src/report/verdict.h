// SPDX-License-Identifier: Apache-2.0
// The verdict on a run, for people in a hurry: what is no longer spent, what it costs, and what to
// do next. The text report begins with it, and so do `cupool report` and the page, which sum the
// figures of several processes first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "stats/snapshot.h"

namespace cupool::report {

/// Why frees have waited, each with its counter.
inline constexpr stats::Counter kWaitReasons[] = {
    stats::Counter::free_waits_sync_total,          stats::Counter::free_waits_host_copy_total,
    stats::Counter::free_waits_managed_total,       stats::Counter::free_waits_zero_copy_total,
    stats::Counter::free_waits_pending_limit_total, stats::Counter::free_waits_order_total};

/// Sums over the devices of one process or of several, but for memory.
struct RunFigures {
  std::array<std::uint64_t, stats::kCounters> counters{};
  std::uint64_t processes = 1;
  std::uint64_t leaked_blocks = 0;
  std::uint64_t leaked_bytes = 0;
  /// Memory of other kinds that was never freed, which only the list of CUPOOL_LEAKS knows.
  std::uint64_t other_leaked_blocks = 0;
  std::uint64_t other_leaked_bytes = 0;
  bool at_exit = true;
  bool lists_leaks = false;  ///< CUPOOL_LEAKS is set
  // Of the device with the highest peak:
  std::uint64_t peak_bytes = 0;          ///< with cupool
  std::uint64_t program_peak_bytes = 0;  ///< the program's own live bytes
  std::uint64_t idle_bytes = 0;          ///< reserved, unused, at the time of the report
  std::uint64_t device_bytes = 0;        ///< its memory; 0: unknown
  std::string device;                    ///< if there are several: "device 3"
  /// The limit on pending bytes that would avoid waits; 0: none, or none is needed.
  std::uint64_t suggested_pending_bytes = 0;
  bool rdma = false;          ///< an RDMA library rules out other modes and pools
  std::string rdma_library;   ///< its name
  bool counts_stalls = true;  ///< not in `ordered`, but in one lane
  // Page-locked memory:
  std::uint64_t host_peak_bytes = 0;  ///< the program's and cached
  std::uint64_t host_idle_bytes = 0;  ///< cached, at the time of the report
  // Settings, as they are written; empty: the default.
  std::string max_block;
  std::string decay;
  bool keeps_default_pool = true;  ///< CUPOOL_ASYNC

  /// A setting that is not at its default.
  void note_setting(const std::string& name, const std::string& value);

  std::uint64_t operator[](stats::Counter c) const { return counters[static_cast<std::size_t>(c)]; }
  std::uint64_t& operator[](stats::Counter c) { return counters[static_cast<std::size_t>(c)]; }

  std::uint64_t from_caches() const;
  /// See unwaited_frees().
  std::uint64_t unwaited() const;
  /// Calls of the driver's own allocation and free that were not made.
  std::uint64_t replaced_mallocs() const { return from_caches(); }
  std::uint64_t replaced_frees() const;
};

struct Verdict {
  std::string time;
  std::string memory;
  std::string next;
  struct Finding {
    std::string what;
    std::string cure;  ///< what to do about it
  };
  std::vector<Finding> findings;
};

/// Pure. Throws only std::bad_alloc, as do the functions below.
Verdict verdict_of(const RunFigures& run);

/// The figures of one process, and its verdict; of an observed run, what it would be.
RunFigures run_figures_of(const stats::Snapshot& snapshot);
Verdict verdict_of(const stats::Snapshot& snapshot);

/// "200 for copies to or from the host, 50 beyond CUPOOL_MAX_PENDING": the most frequent first.
std::string wait_reasons_in_words(const RunFigures& run);

/// The limit on pending bytes that a run with these peaks would not reach: twice what was pending,
/// or an eighth of the device if that is less. 0 if that is no more than there was.
std::uint64_t suggested_pending_bytes(std::uint64_t retired_peak, std::uint64_t device_bytes);

/// Lines of at most `width` characters, the first one behind `before`, the others indented by its
/// length. Words are not split.
std::string wrapped(const std::string& before, const std::string& text, std::size_t width = 110);

/// The three lines of a verdict, and the lines of its findings. A command stands on its own line.
std::string verdict_lines(const Verdict& verdict, const char* indent);
std::string finding_lines(const Verdict& verdict);

}  // namespace cupool::report
