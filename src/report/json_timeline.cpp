// SPDX-License-Identifier: Apache-2.0
// Threads, events and samples in JSON. Samples contain the growth of counters since the previous
// sample: a reader can draw rates directly, and zeros are omitted.
#include "report/json_timeline.h"

#include "report/derived.h"
#include "report/json_sites.h"
#include "stats/labels.h"

namespace cupool::report {

namespace {

Json figures_of(const stats::ThreadSnapshot& thread) {
  return {{"malloc_calls_total", thread.malloc_calls_total},
          {"malloc_requested_bytes_total", thread.malloc_requested_bytes_total},
          {"free_calls_total", thread.free_calls_total},
          {"free_waits_total", thread.free_waits_total},
          {"free_wait_ns_total", thread.free_wait_ns_total}};
}

Json all_growth_of(const stats::DeviceSample& now, const stats::DeviceSample* before) {
  Json json = Json::object();
  const auto add = [&](const char* key, stats::Counter counter) {
    const std::uint64_t grown = growth_of(counter, now, before);
    if (grown != 0) json[key] = grown;
  };
#define CUPOOL_COUNTER(key, unit, label, help) add(#key, stats::Counter::key);
#include "stats/counters.def"
  return json;
}

Json device_sample_of(const stats::DeviceSample& now, const stats::DeviceSample* before) {
  Json json;
  json["ordinal"] = now.ordinal;
  for (const stats::Gauge gauge : kSampledGauges) {
    json[stats::key_of(gauge)] = now.gauges[static_cast<std::size_t>(gauge)];
  }
  json["pool_reserved_bytes"] = now.pool.valid ? Json(now.pool.reserved_current) : Json(nullptr);
  json["pool_used_bytes"] = now.pool.valid ? Json(now.pool.used_current) : Json(nullptr);
  json["device_free_bytes"] = now.has_device_memory ? Json(now.device_free_bytes) : Json(nullptr);
  json["device_total_bytes"] = now.has_device_memory ? Json(now.device_total_bytes) : Json(nullptr);
  json["counters"] = all_growth_of(now, before);
  return json;
}

}  // namespace

Json threads_of(const stats::Snapshot& snapshot) {
  Json json = Json::array();
  for (const stats::ThreadSnapshot& thread : snapshot.threads) {
    Json each = {{"tid", thread.tid}, {"name", thread.name}};
    each.update(figures_of(thread));
    json.push_back(std::move(each));
  }
  return json;
}

Json other_threads_of(const stats::Snapshot& snapshot) {
  Json json = {{"threads", snapshot.other_thread_count}};
  json.update(figures_of(snapshot.other_threads));
  return json;
}

Json events_of(const stats::Snapshot& snapshot) {
  Json json = Json::array();
  for (const stats::Event& event : snapshot.events) {
    json.push_back({{"time_ns", event.time_ns},
                    {"kind", stats::text_of(event.kind)},
                    {"device", event.device},
                    {"count", event.count},
                    {"bytes", event.bytes},
                    {"duration_ns", event.duration_ns}});
  }
  return json;
}

Json series_of(const stats::Snapshot& snapshot) {
  const stats::Series& series = snapshot.series;
  if (series.interval_ns == 0) return nullptr;
  Json samples = Json::array();
  const stats::Sample* before = nullptr;
  for (const stats::Sample& sample : series.samples) {
    Json devices = Json::array();
    for (const stats::DeviceSample& device : sample.devices) {
      devices.push_back(device_sample_of(device, device_in(before, device.ordinal)));
    }
    samples.push_back({{"time_ns", sample.time_ns}, {"devices", std::move(devices)}});
    before = &sample;
  }
  return {{"interval_ns", series.interval_ns},
          {"kept_interval_ns", series.kept_interval_ns},
          {"samples", std::move(samples)}};
}

Json leaks_of(const stats::Snapshot& snapshot) {
  if (snapshot.leaks.one_in == 0) return nullptr;
  Json sites = Json::array();
  ModuleNumbers numbers(snapshot.leaks.modules);
  for (const stats::LeakSite& site : snapshot.leaks.sites) {
    Json frames = Json::array();
    for (const stats::LeakFrame& frame : site.frames) {
      frames.push_back({{"module", frame.module},
                        {"offset", frame.offset},
                        {"symbol", frame.symbol.empty() ? Json(nullptr) : Json(frame.symbol)},
                        {"module_index", numbers.of(frame.loaded)}});
    }
    sites.push_back({{"kind", site.kind},
                     {"device", site.device},
                     {"blocks", site.blocks},
                     {"bytes", site.bytes},
                     {"frames", std::move(frames)}});
  }
  return {{"sampled_one_in", snapshot.leaks.one_in},
          {"is_estimate", snapshot.leaks.one_in > 1},
          {"modules", numbers.list()},
          {"sites", std::move(sites)}};
}

Json trace_of(const stats::Snapshot& snapshot) {
  const stats::TraceSummary& trace = snapshot.trace;
  if (trace.path.empty()) return nullptr;
  return {{"path", trace.path},
          {"events_total", trace.events},
          {"dropped_events_total", trace.dropped},
          {"file_bytes", trace.bytes}};
}

}  // namespace cupool::report
