// SPDX-License-Identifier: Apache-2.0
// A JSON report of cupool as plain figures, and its reader. Additions of newer libraries (time
// series, histograms, threads, events, leaks) are optional: reports without them stay readable.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/page/sites.h"
#include "stats/labels.h"

namespace cupool::cli {

/// The schema that this reader understands (docs/statistics.md).
inline constexpr int kReadableSchema = 1;

/// The file is not a report of cupool, or has a newer schema. The message names the file and, for a
/// schema, both versions.
class ReportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A report of another schema: unlike other files, one that must not be passed over.
class SchemaError : public ReportError {
 public:
  using ReportError::ReportError;
};

struct GaugeFigures {
  std::int64_t current = 0;
  std::int64_t peak = 0;
};

/// The number of records above the previous bucket's bound and up to `upper` (nanoseconds or
/// bytes).
struct Bucket {
  std::uint64_t upper = 0;
  std::uint64_t count = 0;
};

/// Durations of one kind of call, in nanoseconds. `buckets` may be empty.
struct TimeFigures {
  std::uint64_t count = 0;
  std::uint64_t sum = 0;
  std::uint64_t max = 0;
  std::uint64_t p50 = 0;
  std::uint64_t p90 = 0;
  std::uint64_t p99 = 0;
  std::uint64_t p99_9 = 0;
  std::vector<Bucket> buckets;
};

struct PoolReport {
  std::uint64_t reserved_current = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used_current = 0;
  std::uint64_t used_high = 0;
};

/// Figures of a device by their keys in the report; a missing key counts as 0.
struct DeviceReport {
  int ordinal = -1;
  std::string name;
  std::uint64_t total_memory = 0;
  std::map<std::string, std::uint64_t> counters;
  std::map<std::string, GaugeFigures> gauges;
  TimeFigures malloc_time;
  TimeFigures free_time;
  TimeFigures synchronize_time;
  std::optional<PoolReport> pool;
  std::optional<std::int64_t> driver_slack;
  std::int64_t unaccounted = 0;
  std::vector<Bucket> sizes;  ///< requests by size

  std::uint64_t counter(const std::string& key) const;
  std::uint64_t counter(stats::Counter which) const { return counter(stats::key_of(which)); }
  GaugeFigures gauge(const std::string& key) const;
  GaugeFigures gauge(stats::Gauge which) const { return gauge(stats::key_of(which)); }
};

struct SettingReport {
  std::string name;
  std::string value;
  std::string origin;
  bool is_default = true;
};

/// Memory of one device at one moment: bytes, and nanoseconds since the start of the process.
struct SeriesPoint {
  std::uint64_t time = 0;
  int device = -1;
  std::map<std::string, std::uint64_t> values;
};

/// A growth, trim, rescue, wait, ... Events of one kind in quick succession are one event with
/// their number in `count`.
struct EventReport {
  std::uint64_t time = 0;  ///< when it began
  int device = -1;
  std::string kind;
  std::uint64_t count = 1;
  std::uint64_t bytes = 0;
  std::uint64_t duration = 0;
};

/// Figures of one thread.
struct ThreadReport {
  std::string name;
  std::map<std::string, std::uint64_t> counters;
};

/// Blocks of one call site that were never freed; an estimate if allocations were sampled.
struct LeakReport {
  std::string kind;                 ///< of memory, in words
  std::vector<std::size_t> frames;  ///< of Report::leak_places, innermost first
  std::string site;                 ///< the innermost frame
  std::string callers;              ///< the others, the nearest first
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
};

/// The findings of CUPOOL_MODE=observe.
struct ObserveReport {
  std::map<std::string, std::uint64_t> figures;
  std::string verdict;
  std::vector<std::string> sentences;
  std::vector<std::string> assumptions;
};

/// Why free mode and backend are as they are.
struct ModeReasonReport {
  std::string text;
  std::string library;  ///< the RDMA library; "" for another reason
  std::string free_mode;
  std::string backend;
};

/// One report: one process at its exit, or at a snapshot.
struct Report {
  std::string file;
  std::string cupool_version;
  std::uint64_t snapshot_number = 0;
  std::int64_t pid = 0;
  std::string program;
  std::string host;
  std::string rank;         ///< "" without a launcher
  std::uint64_t ranks = 0;  ///< their number; 0: unknown
  std::uint64_t start_wall = 0;
  std::uint64_t end_wall = 0;
  std::string free_mode;
  std::string backend;
  std::string requested_free_mode;  ///< "" in reports of earlier versions
  std::string requested_backend;
  std::optional<ModeReasonReport> mode_reason;
  std::vector<DeviceReport> devices;
  std::vector<SettingReport> settings;
  std::map<std::string, std::string> suggested;
  std::vector<SeriesPoint> series;
  std::vector<EventReport> events;
  std::vector<ThreadReport> threads;
  std::uint64_t thread_count = 0;  ///< threads that called malloc or free; 0: unknown
  std::vector<LeakReport> leaks;
  std::uint64_t leaks_sampled_one_in = 1;
  SitesReport leak_places;  ///< modules and frames alone
  SitesReport sites;
  std::optional<ObserveReport> observe;

  /// Whether an RDMA library decides the modes: advice against waits or plain memory is void then.
  bool has_rdma_library() const { return mode_reason && !mode_reason->library.empty(); }
  /// Whether the modes are not as requested.
  bool modes_differ() const {
    return mode_reason && (mode_reason->free_mode != requested_free_mode ||
                           mode_reason->backend != requested_backend);
  }
  std::uint64_t ran_ns() const { return end_wall > start_wall ? end_wall - start_wall : 0; }
  /// A counter summed over devices.
  std::uint64_t counter(const std::string& key) const;
  std::uint64_t counter(stats::Counter which) const { return counter(stats::key_of(which)); }
};

/// Reads one report from its text; `file` is for messages. Throws ReportError.
Report parse_report(const std::string& text, const std::string& file);

/// Reads one report from a file ("-": standard input). Throws ReportError.
Report read_report(const std::string& file);

/// The reports that the command was given, ranks in numeric order, one of each process: at exit, or
/// else its latest snapshot. A directory stands for the reports in it: its files that end in .json.
/// What is left out, and files there that are no reports, are named on standard error. Throws
/// UsageError if a file is not readable or no report, if a directory holds none, and for a newer
/// schema.
std::vector<Report> read_reports(const std::vector<std::string>& files);

/// The same without the files that cannot be read: each is named on standard error with the reason,
/// and `all` is false. Throws UsageError if no report remains.
std::vector<Report> read_readable_reports(const std::vector<std::string>& files, bool* all);

/// Whether a process had the simulated device (shell/simulated_device.h).
bool is_simulated(const std::vector<Report>& reports);

/// "rank 3" or "process 4711", and the host where `with_host`.
std::string name_of(const Report& report, bool with_host);

}  // namespace cupool::cli
