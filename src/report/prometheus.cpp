// SPDX-License-Identifier: Apache-2.0
// Prometheus text of a snapshot. Names follow from the keys of counters.def: nanoseconds become
// seconds, a gauge's peak gets its own name, the unit comes last, and the parts of a whole are one
// metric. Source: prometheus.io,
// "Exposition formats" and "Metric and label naming".
#include "report/prometheus.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "report/derived.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::report {

namespace {

// Label values: backslash, quote and line end are escaped. They must be UTF-8, which paths may not
// be, and are shown on terminals: invalid or unprintable bytes become question marks.
std::string label_value(std::string_view text) {
  std::string escaped;
  for (const char c : util::printable(text, true)) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// Exact to the nanosecond: nine digits.
std::string seconds(std::uint64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%llu.%09llu", static_cast<unsigned long long>(ns / 1000000000u),
                static_cast<unsigned long long>(ns % 1000000000u));
  return text;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// free_wait_ns_total: cupool_free_wait_seconds_total.
std::string counter_name(std::string_view key) {
  constexpr std::string_view ns = "_ns_total";
  std::string name = "cupool_" + std::string(key);
  if (!ends_with(key, ns)) return name;
  return name.substr(0, name.size() - ns.size()) + "_seconds_total";
}

// application_bytes: cupool_application_peak_bytes.
std::string peak_name(std::string_view key) {
  const std::size_t unit = key.rfind('_');
  return "cupool_" + std::string(key.substr(0, unit)) + "_peak" + std::string(key.substr(unit));
}

class Exposition {
 public:
  explicit Exposition(const stats::Snapshot& snapshot)
      : devices_(snapshot.devices),
        who_("host=\"" + label_value(snapshot.process.host) + "\",pid=\"" +
             std::to_string(snapshot.pid) + "\",rank=\"" + label_value(snapshot.process.rank) +
             "\"") {}

  void begin(const std::string& name, const char* type, std::string_view help) {
    text_ += "# HELP " + name + " " + std::string(help) + "\n# TYPE " + name + " " + type + "\n";
  }
  void sample(const std::string& name, const std::string& labels, const std::string& value) {
    text_ += name + "{" + labels + "} " + value + "\n";
  }
  std::string labels_of(const stats::DeviceSnapshot& device) const {
    return "device=\"" + std::to_string(device.ordinal) + "\"," + who_;
  }

  // A metric with one sample for each device with a text from `value`.
  template <typename Value>
  void metric(const std::string& name, const char* type, std::string_view help,
              const Value& value) {
    std::string samples;
    samples.swap(text_);
    bool any = false;
    for (const stats::DeviceSnapshot& device : devices_) {
      const std::string text = value(device);
      if (text.empty()) continue;
      sample(name, labels_of(device), text);
      any = true;
    }
    samples.swap(text_);
    if (!any) return;
    begin(name, type, help);
    text_ += samples;
  }

  const std::vector<stats::DeviceSnapshot>& devices() const { return devices_; }
  const std::string& who() const { return who_; }
  std::string take() { return std::move(text_); }

 private:
  const std::vector<stats::DeviceSnapshot>& devices_;
  const std::string who_;
  std::string text_;
};

using Device = stats::DeviceSnapshot;

void add_times(Exposition& out, const char* call, std::string_view help,
               const stats::HistogramSummary Device::*time) {
  const std::string name = "cupool_" + std::string(call) + "_duration_seconds";
  if (out.devices().empty()) return;
  out.begin(name, "summary", help);
  for (const Device& device : out.devices()) {
    const stats::HistogramSummary& figures = device.*time;
    const std::string labels = out.labels_of(device);
    const auto quantile = [&](const char* share, std::uint64_t ns) {
      out.sample(name, labels + ",quantile=\"" + share + "\"", seconds(ns));
    };
    quantile("0.5", figures.p50_ns);
    quantile("0.9", figures.p90_ns);
    quantile("0.99", figures.p99_ns);
    quantile("0.999", figures.p99_9_ns);
    out.sample(name + "_sum", labels, seconds(figures.sum_ns));
    out.sample(name + "_count", labels, std::to_string(figures.count));
  }
  out.metric("cupool_" + std::string(call) + "_duration_max_seconds", "gauge",
             "Longest of these calls",
             [&](const Device& device) { return seconds((device.*time).max_ns); });
}

void add_process(Exposition& out, const stats::Snapshot& snapshot) {
  const stats::ProcessInfo& process = snapshot.process;
  out.begin("cupool_process_info", "gauge", "The process that wrote this file; always 1");
  out.sample("cupool_process_info",
             out.who() + ",version=\"" + label_value(process.library_version) + "\",program=\"" +
                 label_value(process.program_path) + "\",free_mode=\"" +
                 label_value(process.free_mode) + "\",backend=\"" + label_value(process.backend) +
                 "\"",
             "1");
  out.begin("cupool_process_start_time_seconds", "gauge",
            "Time at which the process began to use the GPU, since 1970-01-01 UTC");
  out.sample("cupool_process_start_time_seconds", out.who(), seconds(process.start_wall_ns));
  out.begin("cupool_report_time_seconds", "gauge", "Time of these figures, since 1970-01-01 UTC");
  out.sample("cupool_report_time_seconds", out.who(), seconds(snapshot.end_wall_ns));
}

// Figures that are parts of a whole are one metric with a label, so that its sum is that whole. The
// wholes themselves are left out. Peaks have no sum: they keep names of their own.
template <typename Figure>
struct Part {
  Figure figure;
  const char* value;  ///< of the label
};
template <typename Figure>
struct Family {
  const char* name;
  const char* type;
  const char* help;
  const char* label;
  std::vector<Part<Figure>> parts;
  std::vector<Figure> wholes;
};

const std::vector<Family<stats::Counter>>& counter_families() {
  using stats::Counter;
  static const auto* const families =
      new std::vector<Family<Counter>>{{"cupool_malloc_served_total",
                                        "counter",
                                        "Successful allocations, by where the memory is from",
                                        "source",
                                        {{Counter::served_thread_cache_total, "thread_cache"},
                                         {Counter::served_shared_cache_total, "shared_cache"},
                                         {Counter::served_fresh_total, "fresh"},
                                         {Counter::served_passthrough_total, "driver"}},
                                        {}},
                                       {"cupool_free_waits_total",
                                        "counter",
                                        "Frees that waited for the GPU, by reason",
                                        "reason",
                                        {{Counter::free_waits_sync_total, "sync"},
                                         {Counter::free_waits_host_copy_total, "host_copy"},
                                         {Counter::free_waits_managed_total, "managed"},
                                         {Counter::free_waits_zero_copy_total, "zero_copy"},
                                         {Counter::free_waits_pending_limit_total, "pending_limit"},
                                         {Counter::free_waits_order_total, "order"}},
                                        {Counter::free_waits_total}},
                                       {"cupool_free_unserved_total",
                                        "counter",
                                        "Frees that the driver answered, or refused, by kind",
                                        "kind",
                                        {{Counter::free_passthrough_total, "driver"},
                                         {Counter::free_foreign_total, "foreign"},
                                         {Counter::free_null_total, "null"},
                                         {Counter::free_rejected_total, "rejected"}},
                                        {}},
                                       {"cupool_other_malloc_calls_total",
                                        "counter",
                                        "Allocations of the program by other functions, by kind",
                                        "kind",
                                        {{Counter::own_async_malloc_calls_total, "async"},
                                         {Counter::managed_malloc_calls_total, "managed"},
                                         {Counter::array_calls_total, "array"},
                                         {Counter::host_malloc_calls_total, "host"}},
                                        {}}};
  return *families;
}

const std::vector<Family<stats::Gauge>>& gauge_families() {
  using stats::Gauge;
  static const auto* const families =
      new std::vector<Family<Gauge>>{{"cupool_held_bytes",
                                      "gauge",
                                      "Bytes of the blocks that cupool holds, by state",
                                      "state",
                                      {{Gauge::application_bytes, "application"},
                                       {Gauge::rounding_bytes, "rounding"},
                                       {Gauge::retired_bytes, "retired"},
                                       {Gauge::cached_bytes, "cached"}},
                                      {Gauge::held_bytes}}};
  return *families;
}

std::string value_of(const Device& device, stats::Counter counter) {
  return std::to_string(device[counter]);
}
std::string value_of(const Device& device, stats::Gauge gauge) {
  return std::to_string(device[gauge].current);
}

template <typename Figure>
void add_family(Exposition& out, const Family<Figure>& family) {
  if (out.devices().empty()) return;
  out.begin(family.name, family.type, family.help);
  for (const Device& device : out.devices()) {
    for (const Part<Figure>& part : family.parts) {
      out.sample(family.name,
                 out.labels_of(device) + "," + family.label + "=\"" + part.value + "\"",
                 value_of(device, part.figure));
    }
  }
}

template <typename Figure>
bool is_in_family(const std::vector<Family<Figure>>& families, Figure figure) {
  return std::any_of(families.begin(), families.end(), [figure](const Family<Figure>& family) {
    const auto is_figure = [figure](const Part<Figure>& part) { return part.figure == figure; };
    return std::any_of(family.parts.begin(), family.parts.end(), is_figure) ||
           std::count(family.wholes.begin(), family.wholes.end(), figure) != 0;
  });
}

void add_counter(Exposition& out, stats::Counter counter, const char* help) {
  if (is_in_family(counter_families(), counter)) return;
  const std::string_view key = stats::key_of(counter);
  out.metric(counter_name(key), "counter", help, [counter, key](const Device& device) {
    return ends_with(key, "_ns_total") ? seconds(device[counter]) : value_of(device, counter);
  });
}

void add_gauge(Exposition& out, stats::Gauge gauge, const char* help, const char* peak_help) {
  if (!is_in_family(gauge_families(), gauge)) {
    out.metric("cupool_" + std::string(stats::key_of(gauge)), "gauge", help,
               [gauge](const Device& device) { return value_of(device, gauge); });
  }
  out.metric(peak_name(stats::key_of(gauge)), "gauge", peak_help,
             [gauge](const Device& device) { return std::to_string(device[gauge].peak); });
}

void add_figures(Exposition& out) {
  for (const auto& family : counter_families()) add_family(out, family);
  for (const auto& family : gauge_families()) add_family(out, family);
#define CUPOOL_COUNTER(key, unit, label, help) add_counter(out, stats::Counter::key, help);
#define CUPOOL_GAUGE(key, unit, label, help) \
  add_gauge(out, stats::Gauge::key, help, "Highest value so far: " help);
#include "stats/counters.def"
}

void add_pool(Exposition& out) {
  const auto figure = [&out](const char* name, const char* help,
                             std::uint64_t stats::PoolFigures::*value) {
    out.metric(name, "gauge", help, [value](const Device& device) {
      return device.pool.valid ? std::to_string(device.pool.*value) : std::string();
    });
  };
  figure("cupool_pool_reserved_bytes", "Bytes that the driver's pool reserves",
         &stats::PoolFigures::reserved_current);
  figure("cupool_pool_reserved_peak_bytes",
         "Highest value so far: Bytes that the driver's pool reserves",
         &stats::PoolFigures::reserved_high);
  figure("cupool_pool_used_bytes", "Bytes of the driver's pool that are in blocks",
         &stats::PoolFigures::used_current);
  figure("cupool_pool_used_peak_bytes",
         "Highest value so far: Bytes of the driver's pool that are in blocks",
         &stats::PoolFigures::used_high);
  out.metric("cupool_device_memory_bytes", "gauge", "Memory of the device", [](const Device& d) {
    return d.total_memory_bytes == 0 ? std::string() : std::to_string(d.total_memory_bytes);
  });
}

void add_peak_use(Exposition& out) {
  const auto part = [&out](const char* name, const char* help, const auto& value) {
    out.metric(name, "gauge", help, [&value](const Device& device) {
      return device.peak_use.valid() ? std::to_string(value(device.peak_use)) : std::string();
    });
  };
#define CUPOOL_PEAK_USE_PART(key, help) \
  part("cupool_peak_use_" #key, help, [](const stats::PeakUse& use) { return use.key; });
  CUPOOL_PEAK_USE_PARTS(CUPOOL_PEAK_USE_PART)
#undef CUPOOL_PEAK_USE_PART
  part("cupool_peak_use_taken_bytes", "Bytes taken from the device at the peak use: their sum",
       [](const stats::PeakUse& use) { return use.taken_bytes(); });
  part("cupool_peak_use_plain_bytes", "Blocks of the real cuMemAlloc at the peak use, in no pool",
       [](const stats::PeakUse& use) { return use.plain_bytes; });
}

}  // namespace

std::string prometheus_report(const stats::Snapshot& snapshot) {
  Exposition out(snapshot);
  add_process(out, snapshot);
  add_figures(out);
  add_times(out, "malloc", "Time of allocation calls", &Device::malloc_time);
  add_times(out, "free", "Time of free calls", &Device::free_time);
  add_times(out, "synchronize", "Time of device and context synchronisations",
            &Device::synchronize_time);
  add_peak_use(out);
  add_pool(out);
  return out.take();
}

}  // namespace cupool::report
