// SPDX-License-Identifier: Apache-2.0
// All data of a report, plain, taken at one moment. Writers of text and JSON see only this, so they
// can be tested without a GPU, and agree.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stats/device_stats.h"
#include "stats/lane_figures.h"
#include "stats/observation.h"
#include "stats/peak_use.h"
#include "stats/series.h"
#include "stats/sites.h"
#include "stats/thread_figures.h"
#include "stats/timeline.h"

namespace cupool::stats {

inline constexpr int kSchemaVersion = 1;

/// A setting in force, as text: the statistics do not depend on the options.
struct SettingRow {
  std::string name;    ///< CUPOOL_...
  std::string value;   ///< as written, or the default's text
  std::string origin;  ///< default, environment, profile
  bool is_default = true;
};

/// Why the free mode or the backend is not as requested.
struct ModeReason {
  std::string cause;      ///< "libucp.so.0 is loaded"
  std::string library;    ///< file name of the RDMA library; empty for another cause
  std::string free_mode;  ///< in force; of an observed run: what would be in force
  std::string backend;    ///< the same
};

/// Description of the process. this_process() fills in what the system tells; the caller adds the
/// rest.
struct ProcessInfo {
  std::string program_path;  ///< /proc/self/exe
  std::string argv0;         ///< argv[0] of its start
  std::string host;
  std::string rank;         ///< the launcher's, empty if none
  std::uint64_t ranks = 0;  ///< their number; 0: unknown
  std::string job;          ///< the batch system's, empty if none
  std::string library_version;
  std::uint64_t start_wall_ns = 0;  ///< since 1970
  std::string free_mode;            ///< in force, as the user would write it
  std::string backend;              ///< in force (pool, malloc, none), not as set
  std::string requested_free_mode;  ///< as set
  std::string requested_backend;    ///< as set
  std::optional<ModeReason> mode_reason;
  std::vector<SettingRow> settings;
};

/// program_path, argv0, host, rank, version and the time of this call as start. Thread-safe.
/// Unknown fields stay empty. Throws only std::bad_alloc.
ProcessInfo this_process();

/// Stores a copy for take(); a later call replaces it. Thread-safe. Never throws.
void set_process_info(const ProcessInfo& info) noexcept;

/// One device at the moment of the snapshot.
struct DeviceSnapshot {
  int ordinal = -1;  ///< -1: unknown device
  std::string name;
  std::uint64_t total_memory_bytes = 0;
  std::array<std::uint64_t, kCounters> counters{};
  std::array<GaugeValue, kGauges> gauges{};
  HistogramSummary malloc_time;
  HistogramSummary free_time;
  HistogramSummary synchronize_time;
  PoolFigures pool;
  PeakUse peak_use;
  SizeBuckets requested_sizes{};

  std::uint64_t operator[](Counter c) const { return counters[static_cast<std::size_t>(c)]; }
  std::uint64_t& operator[](Counter c) { return counters[static_cast<std::size_t>(c)]; }
  const GaugeValue& operator[](Gauge g) const { return gauges[static_cast<std::size_t>(g)]; }
  GaugeValue& operator[](Gauge g) { return gauges[static_cast<std::size_t>(g)]; }

  /// Reserved bytes of the driver's pool outside of cupool's blocks: the driver's own rounding and
  /// its idle memory. 0 without a pool. A negative value is a bug, and is shown.
  std::int64_t driver_slack_bytes() const noexcept;
};

/// A frame of a call stack.
struct LeakFrame {
  std::string module;        ///< path of the program or library; empty: unknown
  std::uint64_t offset = 0;  ///< in the module, for addr2line
  std::string symbol;        ///< name of the function; empty if not exported
  int loaded = -1;           ///< index of the module in Leaks::modules; -1: unknown
};

/// Live allocations of one call site, of one kind, on one device; `blocks` and `bytes` are scaled
/// estimates if only a sample is kept.
struct LeakSite {
  std::string kind;  ///< "device", "page_locked", "managed" or "stream_ordered"
  int device = -1;   ///< -1: of page-locked memory
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::vector<LeakFrame> frames;  ///< innermost first; none: too many call sites
};

/// Live memory at the time of the report (CUPOOL_LEAKS).
struct Leaks {
  std::uint64_t one_in = 0;     ///< 0: off; 1: every allocation; N: one in N
  std::vector<LeakSite> sites;  ///< most bytes first
  std::vector<SiteModule> modules;
};

/// State of the trace (CUPOOL_TRACE).
struct TraceSummary {
  std::string path;  ///< empty: no trace
  std::uint64_t events = 0;
  std::uint64_t dropped = 0;
  std::uint64_t bytes = 0;
};

struct Snapshot {
  int schema_version = kSchemaVersion;
  int pid = 0;
  std::uint64_t number = 0;       ///< 1, 2, ... while the process runs; 0 at exit
  std::uint64_t end_wall_ns = 0;  ///< time of the snapshot
  ProcessInfo process;
  std::vector<DeviceSnapshot> devices;  ///< those with any activity, by ordinal
  std::vector<ThreadSnapshot> threads;  ///< those with figures of their own
  ThreadSnapshot other_threads;         ///< the sum of all others
  std::uint64_t other_thread_count = 0;
  std::vector<Event> events;               ///< by time
  Series series;                           ///< added by the caller
  TraceSummary trace;                      ///< added by the caller
  Leaks leaks;                             ///< added by the caller
  Sites sites;                             ///< added by the caller
  std::optional<LaneFigures> lane;         ///< with CUPOOL_LANE=1; added by the caller
  std::optional<Observation> observation;  ///< with CUPOOL_MODE=observe; added by the caller

  /// Whether the process allocated GPU memory in any way, by cupool or by itself, or was served
  /// page-locked memory by cupool's cache. Only then it reports.
  bool is_worth_a_report() const noexcept;
};

/// Reads all figures. Each figure is exact; figures read during allocations of other threads may
/// differ by the calls in progress. Thread-safe. Throws only std::bad_alloc.
Snapshot take();

}  // namespace cupool::stats
