// SPDX-License-Identifier: Apache-2.0
// CSV of a snapshot; counters and gauges by traversal of counters.def. Sources: RFC 4180 for the
// format, RFC 3339 for timestamps.
#include "report/csv.h"

#include <time.h>

#include <cstdio>
#include <string_view>

#include "report/derived.h"
#include "stats/labels.h"

namespace cupool::report {

namespace {

// Quoted if it contains a separator of fields or lines; quotes are doubled.
std::string field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string timestamp(std::uint64_t wall_ns) {
  const auto seconds = static_cast<time_t>(wall_ns / 1'000'000'000u);
  struct tm parts {};
  ::gmtime_r(&seconds, &parts);
  char date[32];
  const std::size_t length = ::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  char fraction[16];
  std::snprintf(fraction, sizeof fraction, ".%06uZ",
                static_cast<unsigned>(wall_ns / 1000u % 1'000'000u));
  return std::string(date, length) + fraction;
}

class Table {
 public:
  explicit Table(const stats::Snapshot& snapshot)
      : who_("," + field(snapshot.process.host) + "," + std::to_string(snapshot.pid) + "," +
             field(snapshot.process.rank) + ",") {}

  // Sets time and device of the following rows (empty text: the whole process).
  void begin(std::uint64_t wall_ns, const std::string& device) {
    prefix_ = timestamp(wall_ns) + who_ + device + ",";
  }

  template <typename Number>
  void row(const char* kind, const std::string& name, Number value) {
    text_ += prefix_ + kind + "," + name + "," + std::to_string(value) + "\r\n";
  }

  std::string take() { return std::move(text_); }

 private:
  const std::string who_;
  std::string prefix_;
  std::string text_ = "timestamp,host,pid,rank,device,kind,name,value\r\n";
};

void add_time(Table& table, const std::string& call, const stats::HistogramSummary& time) {
  table.row("time", call + "_count", time.count);
  table.row("time", call + "_sum_ns", time.sum_ns);
  table.row("time", call + "_max_ns", time.max_ns);
  table.row("time", call + "_p50_ns", time.p50_ns);
  table.row("time", call + "_p90_ns", time.p90_ns);
  table.row("time", call + "_p99_ns", time.p99_ns);
  table.row("time", call + "_p99_9_ns", time.p99_9_ns);
}

void add_peak_use(Table& table, const stats::PeakUse& use) {
  table.row("peak_use", "time_ns", use.time_ns);
#define CUPOOL_PEAK_USE_PART(key, help) table.row("peak_use", #key, use.key);
  CUPOOL_PEAK_USE_PARTS(CUPOOL_PEAK_USE_PART)
#undef CUPOOL_PEAK_USE_PART
  table.row("peak_use", "taken_bytes", use.taken_bytes());
  table.row("peak_use", "plain_bytes", use.plain_bytes);
}

void add_device(Table& table, const stats::DeviceSnapshot& device) {
  table.row("device", "total_memory_bytes", device.total_memory_bytes);
#define CUPOOL_COUNTER(key, unit, label, help) \
  table.row("counter", #key, device[stats::Counter::key]);
#define CUPOOL_GAUGE(key, unit, label, help)                           \
  table.row("gauge_current", #key, device[stats::Gauge::key].current); \
  table.row("gauge_peak", #key, device[stats::Gauge::key].peak);
#include "stats/counters.def"
  add_time(table, "malloc", device.malloc_time);
  add_time(table, "free", device.free_time);
  add_time(table, "synchronize", device.synchronize_time);
  table.row("device", "unaccounted_bytes", unaccounted_bytes(device));
  if (device.peak_use.valid()) add_peak_use(table, device.peak_use);
  if (!device.pool.valid) return;
  table.row("pool", "reserved_current_bytes", device.pool.reserved_current);
  table.row("pool", "reserved_high_bytes", device.pool.reserved_high);
  table.row("pool", "used_current_bytes", device.pool.used_current);
  table.row("pool", "used_high_bytes", device.pool.used_high);
  table.row("pool", "driver_slack_bytes", device.driver_slack_bytes());
}

void add_sample(Table& table, const stats::DeviceSample& sample,
                const stats::DeviceSample* before) {
  for (const stats::Gauge gauge : kSampledGauges) {
    table.row("sample", stats::key_of(gauge), sample.gauges[static_cast<std::size_t>(gauge)]);
  }
  if (sample.pool.valid) {
    table.row("sample", "pool_reserved_bytes", sample.pool.reserved_current);
    table.row("sample", "pool_used_bytes", sample.pool.used_current);
  }
  if (sample.has_device_memory) {
    table.row("sample", "device_free_bytes", sample.device_free_bytes);
    table.row("sample", "device_total_bytes", sample.device_total_bytes);
  }
  const auto growth = [&](const char* key, stats::Counter counter) {
    const std::uint64_t grown = growth_of(counter, sample, before);
    if (grown != 0) table.row("sample_growth", key, grown);
  };
#define CUPOOL_COUNTER(key, unit, label, help) growth(#key, stats::Counter::key);
#include "stats/counters.def"
}

void add_series(Table& table, const stats::Snapshot& snapshot) {
  const stats::Sample* before = nullptr;
  for (const stats::Sample& sample : snapshot.series.samples) {
    for (const stats::DeviceSample& device : sample.devices) {
      table.begin(snapshot.process.start_wall_ns + sample.time_ns, std::to_string(device.ordinal));
      add_sample(table, device, device_in(before, device.ordinal));
    }
    before = &sample;
  }
}

}  // namespace

std::string csv_report(const stats::Snapshot& snapshot) {
  Table table(snapshot);
  table.begin(snapshot.end_wall_ns, "");
  table.row("process", "start_wall_ns", snapshot.process.start_wall_ns);
  table.row("process", "end_wall_ns", snapshot.end_wall_ns);
  table.row("process", "snapshot_number", snapshot.number);
  for (const stats::DeviceSnapshot& device : snapshot.devices) {
    table.begin(snapshot.end_wall_ns, std::to_string(device.ordinal));
    add_device(table, device);
  }
  add_series(table, snapshot);
  return table.take();
}

}  // namespace cupool::report
