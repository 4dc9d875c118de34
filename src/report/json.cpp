// SPDX-License-Identifier: Apache-2.0
// JSON of a snapshot; counters and gauges by traversal of counters.def.
#include "report/json.h"

#include "report/derived.h"
#include "report/json_sites.h"
#include "report/json_timeline.h"
#include "report/observe.h"

namespace cupool::report {

namespace {

Json counters_of(const stats::DeviceSnapshot& device) {
  Json json = Json::object();
#define CUPOOL_COUNTER(key, unit, label, help) json[#key] = device[stats::Counter::key];
#include "stats/counters.def"
  return json;
}

Json gauges_of(const stats::DeviceSnapshot& device) {
  Json json = Json::object();
#define CUPOOL_GAUGE(key, unit, label, help)                    \
  json[#key] = {{"current", device[stats::Gauge::key].current}, \
                {"peak", device[stats::Gauge::key].peak}};
#include "stats/counters.def"
  return json;
}

Json time_of(const stats::HistogramSummary& time) {
  Json buckets = Json::array();
  for (const stats::HistogramBucket& bucket : time.buckets) {
    buckets.push_back({{"upper_bound_ns", bucket.upper_bound_ns}, {"count", bucket.count}});
  }
  return {{"count", time.count},       {"sum_ns", time.sum_ns}, {"max_ns", time.max_ns},
          {"p50_ns", time.p50_ns},     {"p90_ns", time.p90_ns}, {"p99_ns", time.p99_ns},
          {"p99_9_ns", time.p99_9_ns}, {"buckets", buckets}};
}

Json sizes_of(const stats::DeviceSnapshot& device) {
  Json json = Json::array();
  for (std::size_t i = 0; i < stats::kSizeBuckets; ++i) {
    const stats::SizeBucket& bucket = device.requested_sizes[i];
    if (bucket.count == 0) continue;
    json.push_back({{"upper_bound_bytes", stats::size_bucket_bound(i)},
                    {"count", bucket.count},
                    {"bytes", bucket.bytes}});
  }
  return json;
}

Json pool_of(const stats::PoolFigures& pool) {
  if (!pool.valid) return nullptr;
  return {{"reserved_current_bytes", pool.reserved_current},
          {"reserved_high_bytes", pool.reserved_high},
          {"used_current_bytes", pool.used_current},
          {"used_high_bytes", pool.used_high}};
}

Json peak_use_of(const stats::PeakUse& use) {
  if (!use.valid()) return nullptr;
  Json json;
  json["time_ns"] = use.time_ns;
#define CUPOOL_PEAK_USE_PART(key, help) json[#key] = use.key;
  CUPOOL_PEAK_USE_PARTS(CUPOOL_PEAK_USE_PART)
#undef CUPOOL_PEAK_USE_PART
  json["taken_bytes"] = use.taken_bytes();
  json["plain_bytes"] = use.plain_bytes;
  return json;
}

Json device_of(const stats::DeviceSnapshot& device) {
  Json json;
  json["ordinal"] = device.ordinal;
  json["name"] = device.name;
  json["total_memory_bytes"] = device.total_memory_bytes;
  json["counters"] = counters_of(device);
  json["gauges"] = gauges_of(device);
  json["times"] = {{"malloc", time_of(device.malloc_time)},
                   {"free", time_of(device.free_time)},
                   {"synchronize", time_of(device.synchronize_time)}};
  json["requested_sizes"] = sizes_of(device);
  json["pool"] = pool_of(device.pool);
  json["driver_slack_bytes"] =
      device.pool.valid ? Json(device.driver_slack_bytes()) : Json(nullptr);
  json["peak_use"] = peak_use_of(device.peak_use);
  json["unaccounted_bytes"] = unaccounted_bytes(device);
  return json;
}

Json text_or_null(const char* text) {
  return text == nullptr ? Json(nullptr) : Json(text);
}

Json lane_of(const std::optional<stats::LaneFigures>& lane) {
  if (!lane) return nullptr;
  return {{"seconds", static_cast<double>(lane->inside_ns) / 1e9},
          {"away", lane->away},
          {"last_call", text_or_null(lane->last_call)},
          {"end", text_or_null(lane->end)},
          {"end_call", text_or_null(lane->end_call)}};
}

Json process_of(const stats::Snapshot& snapshot) {
  const stats::ProcessInfo& process = snapshot.process;
  Json json;
  json["pid"] = snapshot.pid;
  json["program_path"] = process.program_path;
  json["argv0"] = process.argv0;
  json["host"] = process.host;
  json["rank"] = process.rank.empty() ? Json(nullptr) : Json(process.rank);
  json["ranks"] = process.ranks == 0 ? Json(nullptr) : Json(process.ranks);
  json["job"] = process.job.empty() ? Json(nullptr) : Json(process.job);
  json["start_wall_ns"] = process.start_wall_ns;
  json["end_wall_ns"] = snapshot.end_wall_ns;
  json["lane"] = lane_of(snapshot.lane);
  return json;
}

Json mode_reason_of(const stats::ProcessInfo& process) {
  if (!process.mode_reason) return nullptr;
  const stats::ModeReason& reason = *process.mode_reason;
  return {{"text", modes_in_words(process)},
          {"library", reason.library.empty() ? Json(nullptr) : Json(reason.library)},
          {"free_mode", reason.free_mode},
          {"backend", reason.backend}};
}

Json settings_of(const stats::Snapshot& snapshot) {
  Json json = Json::array();
  for (const stats::SettingRow& row : snapshot.process.settings) {
    json.push_back({{"name", row.name},
                    {"value", row.value},
                    {"origin", row.origin},
                    {"is_default", row.is_default}});
  }
  return json;
}

Json suggested_settings_of(const stats::Snapshot& snapshot) {
  Json json = Json::object();
  const std::uint64_t bytes = suggested_pool_bytes(snapshot);
  if (bytes > 0) {
    json["CUPOOL_RELEASE_THRESHOLD"] = option_value(bytes);
    json["CUPOOL_PREALLOC"] = option_value(bytes);
  }
  return json;
}

}  // namespace

std::string json_report(const stats::Snapshot& snapshot) {
  Json json;
  json["schema_version"] = snapshot.schema_version;
  json["cupool_version"] = snapshot.process.library_version;
  json["process"] = process_of(snapshot);
  json["snapshot_number"] = snapshot.number;
  json["free_mode"] = snapshot.process.free_mode;
  json["backend"] = snapshot.process.backend;
  json["requested"] = {{"free_mode", snapshot.process.requested_free_mode},
                       {"backend", snapshot.process.requested_backend}};
  json["mode_reason"] = mode_reason_of(snapshot.process);
  json["devices"] = Json::array();
  for (const stats::DeviceSnapshot& device : snapshot.devices) {
    json["devices"].push_back(device_of(device));
  }
  json["threads"] = threads_of(snapshot);
  json["other_threads"] = other_threads_of(snapshot);
  json["events"] = events_of(snapshot);
  json["series"] = series_of(snapshot);
  if (snapshot.observation) json["observe"] = observe_json(snapshot);
  json["leaks"] = leaks_of(snapshot);
  json["sites"] = sites_of(snapshot.sites);
  json["trace"] = trace_of(snapshot);
  json["suggested_settings"] = suggested_settings_of(snapshot);
  json["settings"] = settings_of(snapshot);
  // Paths need not be UTF-8: replace instead of throwing.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace cupool::report
