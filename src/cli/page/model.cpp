// SPDX-License-Identifier: Apache-2.0
// A strict reader: each value must have the type of the schema, so that another file gives one
// clear error instead of a page of nonsense.
#include "cli/page/model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/page/optional.h"
#include "cli/shell/input.h"
#include "cli/shell/simulated_device.h"

namespace cupool::cli {

std::uint64_t DeviceReport::counter(const std::string& key) const {
  const auto found = counters.find(key);
  return found == counters.end() ? 0 : found->second;
}

GaugeFigures DeviceReport::gauge(const std::string& key) const {
  const auto found = gauges.find(key);
  return found == gauges.end() ? GaugeFigures{} : found->second;
}

std::uint64_t Report::counter(const std::string& key) const {
  std::uint64_t sum = 0;
  for (const DeviceReport& device : devices) sum += device.counter(key);
  return sum;
}

namespace {

constexpr const char* kReaderVersion = CUPOOL_VERSION;
// A report of 3,000 devices with a time series has some 40 MB; parsed JSON takes ten times its
// size.
constexpr std::uint64_t kMostReportBytes = std::uint64_t{256} << 20;

TimeFigures time_of(const JsonReader& times, const char* key) {
  TimeFigures figures;
  if (!times.has(key)) return figures;
  const JsonReader time = times.object(key);
  figures.count = time.number("count");
  figures.sum = time.number("sum_ns");
  figures.max = time.number("max_ns");
  figures.p50 = time.number("p50_ns");
  figures.p90 = time.number("p90_ns");
  figures.p99 = time.number("p99_ns");
  figures.p99_9 = time.number("p99_9_ns");
  figures.buckets = read_buckets(time, "buckets", "upper_bound_ns");
  return figures;
}

std::optional<PoolReport> pool_of(const JsonReader& device) {
  if (!device.has("pool")) return std::nullopt;
  const JsonReader pool = device.object("pool");
  PoolReport figures;
  figures.reserved_current = pool.number("reserved_current_bytes");
  figures.reserved_high = pool.number("reserved_high_bytes");
  figures.used_current = pool.number("used_current_bytes");
  figures.used_high = pool.number("used_high_bytes");
  return figures;
}

DeviceReport device_of(const JsonReader& json) {
  DeviceReport device;
  device.ordinal = static_cast<int>(json.signed_number("ordinal"));
  device.name = json.text("name");
  device.total_memory = json.number("total_memory_bytes");
  device.counters = json.numbers("counters");
  if (json.has("gauges")) {
    const JsonReader gauges = json.object("gauges");
    for (const std::string& key : gauges.keys()) {
      const JsonReader gauge = gauges.object(key.c_str());
      device.gauges[key] = {gauge.signed_number("current"), gauge.signed_number("peak")};
    }
  }
  if (json.has("times")) {
    const JsonReader times = json.object("times");
    device.malloc_time = time_of(times, "malloc");
    device.free_time = time_of(times, "free");
    device.synchronize_time = time_of(times, "synchronize");
  }
  device.pool = pool_of(json);
  if (json.has("driver_slack_bytes")) {
    device.driver_slack = json.signed_number("driver_slack_bytes");
  }
  device.unaccounted = json.signed_number("unaccounted_bytes");
  read_optional_of_device(json, &device);
  return device;
}

void read_process(const JsonReader& json, Report* report) {
  const JsonReader process = json.object("process");
  report->pid = process.signed_number("pid");
  report->program = process.text("program_path");
  if (report->program.empty()) report->program = process.text("argv0");
  report->host = process.text("host");
  report->rank = process.text("rank");
  report->ranks = process.number("ranks");
  report->start_wall = process.number("start_wall_ns");
  report->end_wall = process.number("end_wall_ns");
}

void read_modes(const JsonReader& json, Report* report) {
  report->free_mode = json.text("free_mode");
  report->backend = json.text("backend");
  if (json.has("requested")) {
    report->requested_free_mode = json.object("requested").text("free_mode");
    report->requested_backend = json.object("requested").text("backend");
  }
  if (!json.has("mode_reason")) return;
  const JsonReader reason = json.object("mode_reason");
  report->mode_reason = {reason.text("text"), reason.text("library"), reason.text("free_mode"),
                         reason.text("backend")};
}

void check_schema(const JsonReader& json, const std::string& file) {
  if (!json.has("schema_version") || !json.has("cupool_version") || !json.has("process") ||
      !json.has("devices")) {
    throw ReportError(file + ": not a report of cupool (CUPOOL_STATS=json writes one)");
  }
  const std::uint64_t schema = json.number("schema_version");
  if (schema == kReadableSchema) return;
  throw SchemaError(file + ": report of schema version " + std::to_string(schema) +
                    ", written by cupool " + json.text("cupool_version") + "; this cupool " +
                    kReaderVersion + " reads schema version " + std::to_string(kReadableSchema));
}

}  // namespace

namespace {

// One byte opens a level, and each level costs the JSON parser a hundred bytes.
bool nested_too_deeply(const std::string& text) {
  constexpr int kMostLevels = 64;  // a report has eight
  int level = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++level > kMostLevels) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --level;
    }
  }
  return false;
}

// A trace of CUPOOL_TRACE=run.csv begins with the names of its columns.
bool is_trace(const std::string& text) {
  const std::string first = text.substr(0, text.find('\n'));
  return first.find("Thread") != std::string::npos && first.find("Action") != std::string::npos &&
         first.find("Pointer") != std::string::npos;
}

std::string why_not_json(const std::string& text, const std::string& file) {
  if (is_trace(text)) return "that is a trace: cupool replay " + file;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    return "ends early or is damaged: it begins as JSON and is none";
  }
  return "not JSON (CUPOOL_STATS=json writes it)";
}

}  // namespace

Report parse_report(const std::string& text, const std::string& file) {
  if (nested_too_deeply(text)) {
    throw ReportError(file + ": not a report of cupool (nested too deeply)");
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) throw ReportError(file + ": " + why_not_json(text, file));
  if (!json.is_object()) {
    throw ReportError(file + ": not a report of cupool (CUPOOL_STATS=json writes one)");
  }
  const JsonReader reader(json, file, "");
  check_schema(reader, file);
  Report report;
  report.file = file;
  report.cupool_version = reader.text("cupool_version");
  report.snapshot_number = reader.number("snapshot_number");
  read_modes(reader, &report);
  read_process(reader, &report);
  for (const JsonReader& device : reader.array("devices")) {
    report.devices.push_back(device_of(device));
  }
  for (const JsonReader& row : reader.array("settings")) {
    report.settings.push_back(
        {row.text("name"), row.text("value"), row.text("origin"), row.flag("is_default")});
  }
  report.suggested = reader.texts("suggested_settings");
  read_optional_of_report(reader, &report);
  return report;
}

Report read_report(const std::string& file) {
  std::string content;
  std::string reason;
  if (!read_input(file, kMostReportBytes, &content, &reason)) {
    throw ReportError(file + ": cannot be read: " + reason);
  }
  return parse_report(content, file);
}

bool is_simulated(const std::vector<Report>& reports) {
  return std::any_of(reports.begin(), reports.end(), [](const Report& report) {
    return std::any_of(report.devices.begin(), report.devices.end(),
                       [](const DeviceReport& device) { return device.name == kSimulatedDevice; });
  });
}

std::string name_of(const Report& report, bool with_host) {
  std::string name =
      report.rank.empty() ? "process " + std::to_string(report.pid) : "rank " + report.rank;
  if (with_host && !report.host.empty()) name += " on " + report.host;
  return name;
}

}  // namespace cupool::cli
