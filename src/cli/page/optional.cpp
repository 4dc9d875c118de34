// SPDX-License-Identifier: Apache-2.0
// Histograms, threads, events, the time series, and the findings of CUPOOL_MODE=observe.
#include "cli/page/optional.h"

#include <algorithm>

#include "cli/page/leaks.h"

namespace cupool::cli {

namespace {

void read_events(const JsonReader& json, Report* report) {
  for (const JsonReader& row : json.array("events")) {
    EventReport event;
    event.time = row.number("time_ns");
    event.kind = row.text("kind");
    event.device = static_cast<int>(row.signed_number("device"));
    event.count = row.number("count");
    event.bytes = row.number("bytes");
    event.duration = row.number("duration_ns");
    // The report has the end of a wait; the page draws from the beginning.
    if (event.kind == "wait") event.time -= std::min(event.time, event.duration);
    report->events.push_back(event);
  }
}

void read_series(const JsonReader& json, Report* report) {
  if (!json.has("series")) return;
  for (const JsonReader& sample : json.object("series").array("samples")) {
    for (const JsonReader& device : sample.array("devices")) {
      SeriesPoint point;
      point.time = sample.number("time_ns");
      point.device = static_cast<int>(device.signed_number("ordinal"));
      point.values = device.own_numbers();
      if (device.has("device_total_bytes") && device.has("device_free_bytes")) {
        const std::uint64_t total = device.number("device_total_bytes");
        point.values["device_used_bytes"] =
            total - std::min(total, device.number("device_free_bytes"));
      }
      report->series.push_back(std::move(point));
    }
  }
}

void read_threads(const JsonReader& json, Report* report) {
  for (const JsonReader& row : json.array("threads")) {
    ThreadReport thread;
    thread.counters = row.own_numbers();
    thread.counters.erase("tid");
    thread.name = row.text("name") + " (" + std::to_string(row.number("tid")) + ")";
    report->threads.push_back(std::move(thread));
  }
  report->thread_count = report->threads.size();
  if (!json.has("other_threads")) return;
  const JsonReader others = json.object("other_threads");
  const std::uint64_t number = others.number("threads");
  if (number == 0) return;
  report->thread_count += number;
  ThreadReport thread;
  thread.counters = others.own_numbers();
  thread.counters.erase("threads");
  thread.name = std::to_string(number) + " other threads";
  report->threads.push_back(std::move(thread));
}

void read_observe(const JsonReader& json, Report* report) {
  if (!json.has("observe")) return;
  const JsonReader observe = json.object("observe");
  ObserveReport found;
  found.figures = observe.own_numbers();
  found.verdict = observe.text("verdict");
  found.sentences = observe.words("sentences");
  found.assumptions = observe.words("assumptions");
  report->observe = std::move(found);
}

constexpr std::size_t kMostBuckets = 4096;  // four times the library's number

}  // namespace

std::vector<Bucket> read_buckets(const JsonReader& json, const char* key, const char* bound) {
  std::vector<Bucket> buckets;
  for (const JsonReader& row : json.array(key)) {
    buckets.push_back({row.number(bound), row.number("count")});
  }
  if (buckets.size() > kMostBuckets) json.fail(key, "a histogram of at most 4,096 buckets");
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const Bucket& a, const Bucket& b) { return a.upper < b.upper; });
  return buckets;
}

void read_optional_of_device(const JsonReader& json, DeviceReport* device) {
  device->sizes = read_buckets(json, "requested_sizes", "upper_bound_bytes");
}

void read_optional_of_report(const JsonReader& json, Report* report) {
  read_events(json, report);
  read_series(json, report);
  read_threads(json, report);
  read_leaks(json, report);
  report->sites = read_sites(json);
  read_observe(json, report);
}

}  // namespace cupool::cli
