// SPDX-License-Identifier: Apache-2.0
// Sums in floating point: a hostile report could overflow integers. Each figure is named by the
// table of counters.
#include "cli/page/difference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "cli/page/story.h"
#include "cli/page/svg.h"
#include "cli/page/text.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {

using stats::Counter;
using stats::Gauge;

const char* const kNoiseRule =
    "Left out as noise: times that differ by less than 10 % or 1 ms, sizes by less than 2 % or "
    "1 MiB, counts by less than 2 % or 10. Settings, failures and leaks are listed with any "
    "difference. One run each is no measurement of speed: cupool compare repeats runs.";

namespace {

using Reports = std::vector<Report>;

// Noise: a change counts from both on, the share of the larger value and the difference.
struct Noise {
  double share;
  double least;
};
constexpr Noise kTimeNoise{0.10, 1e6};  // ns
constexpr Noise kBytesNoise{0.02, 1024.0 * 1024.0};
constexpr Noise kCountNoise{0.02, 10};
constexpr Noise kNoNoise{0, 0};

constexpr std::size_t kMostRowsOfGroup = 64;
constexpr std::size_t kLongestText = 160;

using Format = std::string (*)(std::uint64_t);

struct Figure {
  std::string name;
  std::function<double(const Reports&)> value;
  Format format;
  Noise noise;
  bool is_observed = false;  // observed runs have it, too
};

struct FigureGroup {
  std::string title;
  std::vector<Figure> figures;
};

double sum_over(const Reports& reports, const std::function<double(const DeviceReport&)>& value) {
  double sum = 0;
  for (const Report& report : reports) {
    if (report.observe) continue;
    for (const DeviceReport& device : report.devices) sum += value(device);
  }
  return sum;
}

Figure summed(std::string name, std::function<double(const DeviceReport&)> value, Format format,
              Noise noise) {
  return {std::move(name),
          [value = std::move(value)](const Reports& reports) { return sum_over(reports, value); },
          format, noise};
}

// With what observed runs have in its place.
Figure or_observed(Figure figure, const char* key) {
  figure.is_observed = true;
  figure.value = [value = std::move(figure.value), key](const Reports& reports) {
    double sum = value(reports);
    for (const Report& report : reports) sum += static_cast<double>(observed_figure(report, key));
    return sum;
  };
  return figure;
}

Figure counted(Counter counter, Noise noise = kCountNoise, Format format = util::format_count) {
  return summed(
      std::string(label_of(counter)),
      [counter](const DeviceReport& device) {
        return static_cast<double>(device.counter(counter));
      },
      format, noise);
}

Figure timed(const char* name, TimeFigures DeviceReport::*time) {
  return summed(
      name, [time](const DeviceReport& device) { return static_cast<double>((device.*time).sum); },
      util::format_duration_ns, kTimeNoise);
}

Figure peak_of(Gauge gauge) {
  return summed(
      std::string(label_of(gauge)),
      [gauge](const DeviceReport& device) {
        return static_cast<double>(bytes_of(device.gauge(gauge).peak));
      },
      util::format_bytes, kBytesNoise);
}

Figure left_over(Gauge gauge, Format format) {
  return summed(
      std::string(label_of(gauge)),
      [gauge](const DeviceReport& device) {
        return static_cast<double>(bytes_of(device.gauge(gauge).current));
      },
      format, kNoNoise);
}

double run_time(const Reports& reports) {
  std::uint64_t longest = 0;
  for (const Report& report : reports) longest = std::max(longest, report.ran_ns());
  return static_cast<double>(longest);
}

Figure in_malloc() {
  return or_observed(timed("in malloc", &DeviceReport::malloc_time), "malloc_ns_total");
}

Figure in_free() {
  return or_observed(timed("in free", &DeviceReport::free_time), "free_ns_total");
}

double spent(const Reports& reports) {
  return in_malloc().value(reports) + in_free().value(reports);
}

// The peak of `cupool report`.
Figure peak_in_all() {
  return or_observed(
      summed(
          "of the device, in all",
          [](const DeviceReport& device) { return static_cast<double>(peak_memory(device)); },
          util::format_bytes, kBytesNoise),
      "live_peak_bytes");
}

// Without what cupool adds.
Figure peak_of_program() {
  Figure figure = or_observed(peak_of(Gauge::device_bytes), "live_peak_bytes");
  figure.name = "the program's own";
  return figure;
}

double at_peak(const Reports& reports) {
  return peak_in_all().value(reports);
}

std::vector<FigureGroup> figure_groups() {
  constexpr Noise kTimes = kTimeNoise;
  return {
      {"Time",
       {{"run", run_time, util::format_duration_ns, kTimes, true},
        in_malloc(),
        in_free(),
        counted(Counter::free_wait_ns_total, kTimes, util::format_duration_ns),
        counted(Counter::message_wait_ns_total, kTimes, util::format_duration_ns),
        timed("in synchronise", &DeviceReport::synchronize_time)}},
      {"Peak memory",
       {peak_in_all(), peak_of_program(), peak_of(Gauge::application_bytes),
        peak_of(Gauge::held_bytes), peak_of(Gauge::passthrough_bytes)}},
      {"Allocations",
       {or_observed(counted(Counter::malloc_calls_total), "malloc_calls_total"),
        counted(Counter::served_thread_cache_total), counted(Counter::served_shared_cache_total),
        counted(Counter::served_fresh_total), counted(Counter::served_passthrough_total),
        counted(Counter::malloc_failed_total, kNoNoise)}},
      {"Frees",
       {or_observed(counted(Counter::free_calls_total), "free_calls_total"),
        counted(Counter::frees_unwaited_busy_total),
        counted(Counter::free_rejected_total, kNoNoise)}},
      {"Frees that waited, by reason",
       {counted(Counter::free_waits_total), counted(Counter::free_waits_host_copy_total),
        counted(Counter::free_waits_managed_total), counted(Counter::free_waits_zero_copy_total),
        counted(Counter::free_waits_pending_limit_total), counted(Counter::free_waits_sync_total),
        counted(Counter::free_waits_order_total)}},
      {"Memory pressure",
       {counted(Counter::trims_total), counted(Counter::oom_rescues_total, kNoNoise),
        counted(Counter::neighbours_asked_total, kNoNoise)}},
      {"Never freed of cudaMalloc",
       {left_over(Gauge::leaked_blocks, util::format_count),
        left_over(Gauge::leaked_bytes, util::format_bytes)}},
  };
}

bool is_noise(double before, double after, const Noise& noise) {
  const double change = std::fabs(after - before);
  return change == 0 || change < noise.least ||
         change < noise.share * std::max(std::fabs(before), std::fabs(after));
}

// "+12.0 %", "2.5 times", or "" for a new figure.
std::string change_in_words(double before, double after) {
  if (before <= 0) return "";
  const double ratio = after / before;
  char text[64];
  if (ratio >= 2) {
    std::snprintf(text, sizeof text, "%.*f times", ratio < 10 ? 1 : 0, ratio);
  } else {
    std::snprintf(text, sizeof text, "%+.1f %%", (ratio - 1) * 100);
  }
  return text;
}

Change change_of(const Figure& figure, double before, double after) {
  return {figure.name, figure.format(whole_number(before)), figure.format(whole_number(after)),
          change_in_words(before, after)};
}

bool any_observed(const Reports& reports) {
  return std::any_of(reports.begin(), reports.end(),
                     [](const Report& report) { return report.observe.has_value(); });
}

ChangeGroup changes_in(const FigureGroup& group, const Reports& before, const Reports& after) {
  ChangeGroup changed{group.title, {}, 0};
  const bool observed = any_observed(before) || any_observed(after);
  for (const Figure& figure : group.figures) {
    if (observed && !figure.is_observed) continue;
    const double old_value = figure.value(before);
    const double new_value = figure.value(after);
    if (is_noise(old_value, new_value, figure.noise)) continue;
    changed.changes.push_back(change_of(figure, old_value, new_value));
  }
  return changed;
}

std::string shortened(const std::string& text) {
  if (text.size() <= kLongestText) return text;
  std::size_t end = kLongestText;  // not within a character
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// The different values in a job, three at most.
using Values = std::map<std::string, std::set<std::string>>;

std::string in_words(const Values& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) return "-";
  std::string text;
  std::size_t listed = 0;
  for (const std::string& value : found->second) {
    if (++listed > 3) break;
    text += (text.empty() ? "" : ", ") + (value.empty() ? "(none)" : shortened(value));
  }
  if (found->second.size() > 3) {
    text += " and " + util::format_count(found->second.size() - 3) + " more";
  }
  return text;
}

// Modes first; then settings by name.
Values values_of(const Reports& reports) {
  Values values;
  for (const Report& report : reports) {
    values[" 0cupool"].insert(report.cupool_version);
    values[" 1free mode"].insert(report.free_mode);
    values[" 2backend"].insert(report.backend);
    for (const DeviceReport& device : report.devices) {
      if (!device.name.empty()) values[" 3device"].insert(device.name);
    }
    for (const SettingReport& setting : report.settings) {
      values[setting.name].insert(setting.value);
    }
  }
  return values;
}

void bound(ChangeGroup* group) {
  if (group->changes.size() <= kMostRowsOfGroup) return;
  const std::size_t others = group->changes.size() - kMostRowsOfGroup;
  group->changes.resize(kMostRowsOfGroup);
  group->left_out = others;
  group->changes.push_back({"and " + util::format_count(others) + " more", "", "", ""});
}

ChangeGroup changed_settings(const Reports& before, const Reports& after) {
  ChangeGroup group{"Modes and settings", {}, 0};
  const Values old_values = values_of(before);
  const Values new_values = values_of(after);
  std::set<std::string> names;
  for (const auto& [name, values] : old_values) names.insert(name);
  for (const auto& [name, values] : new_values) names.insert(name);
  for (const std::string& name : names) {
    const auto old_value = old_values.find(name);
    const auto new_value = new_values.find(name);
    const bool both = old_value != old_values.end() && new_value != new_values.end();
    if (both && old_value->second == new_value->second) continue;
    const bool mode = name.size() > 2 && name[0] == ' ';
    group.changes.push_back({mode ? name.substr(2) : shortened(name), in_words(old_values, name),
                             in_words(new_values, name), ""});
  }
  bound(&group);
  return group;
}

// Leaked bytes and blocks by call site.
using Sites = std::map<std::string, std::pair<double, double>>;

Sites sites_of(const Reports& reports) {
  Sites sites;
  for (const Report& report : reports) {
    for (const LeakReport& leak : report.leaks) {
      const std::string kind = leak.kind == "device" ? "" : leak.kind + " memory: ";
      auto& [bytes, blocks] = sites[kind + leak.site];
      bytes += static_cast<double>(leak.bytes);
      blocks += static_cast<double>(leak.blocks);
    }
  }
  return sites;
}

ChangeGroup changed_sites(const Reports& before, const Reports& after) {
  ChangeGroup group{"Never freed of any kind, by call site", {}, 0};
  Sites old_sites = sites_of(before);
  Sites new_sites = sites_of(after);
  for (const auto& [site, figures] : old_sites) new_sites.try_emplace(site);
  std::vector<std::pair<double, std::string>> order;  // the largest difference first
  for (const auto& [site, figures] : new_sites) {
    const auto old_figures = old_sites[site];
    if (old_figures == figures) continue;
    order.emplace_back(-std::fabs(figures.first - old_figures.first), site);
  }
  std::sort(order.begin(), order.end());
  const auto words = [](const std::pair<double, double>& figures) {
    return util::format_bytes(whole_number(figures.first)) + " in " +
           util::format_count(whole_number(figures.second));
  };
  for (const auto& [size, site] : order) {
    group.changes.push_back({shortened(site), words(old_sites[site]), words(new_sites[site]),
                             change_in_words(old_sites[site].first, new_sites[site].first)});
  }
  bound(&group);
  return group;
}

std::set<std::string> programs_of(const Reports& reports) {
  std::set<std::string> names;
  for (const Report& report : reports) names.insert(util::base_name(report.program));
  return names;
}

std::vector<std::string> notes_on(const Reports& before, const Reports& after) {
  std::vector<std::string> notes;
  if (before.size() != after.size()) {
    notes.push_back("The first run has " + util::format_count(before.size()) +
                    " reports, the second " + util::format_count(after.size()) +
                    ": the sums are of all processes.");
  }
  if (programs_of(before) != programs_of(after)) {
    notes.push_back("The programs differ: " + shortened(*programs_of(before).begin()) + " and " +
                    shortened(*programs_of(after).begin()) + ".");
  }
  for (const Reports* reports : {&before, &after}) {
    const std::string run = reports == &before ? "The first run" : "The second run";
    if (any_observed(*reports)) {
      notes.push_back(run +
                      " was observed (CUPOOL_MODE=observe): its figures are the driver's, and what "
                      "it has no figure of is left out.");
    }
    const bool unfinished = std::any_of(reports->begin(), reports->end(), [](const Report& report) {
      return report.snapshot_number != 0;
    });
    if (!unfinished) continue;
    notes.push_back(run + " has snapshots of processes that were still running.");
  }
  return notes;
}

// "less time in malloc and free: 3.20 s instead of 5.00 s", or "" for noise.
std::string compared(const char* less, const char* more, double before, double after,
                     const Noise& noise, Format format) {
  if (is_noise(before, after, noise)) return "";
  return std::string(after < before ? less : more) + ": " + format(whole_number(after)) +
         " instead of " + format(whole_number(before));
}

std::string headline_of(const Reports& before, const Reports& after, std::size_t changes) {
  if (changes == 0) return "Nothing changed by more than noise";
  std::string text = compared("Less time in malloc and free", "More time in malloc and free",
                              spent(before), spent(after), kTimeNoise, util::format_duration_ns);
  const std::string memory =
      compared(text.empty() ? "Less memory at the peak" : "less memory at the peak",
               text.empty() ? "More memory at the peak" : "more memory at the peak",
               at_peak(before), at_peak(after), kBytesNoise, util::format_bytes);
  if (!memory.empty()) text += (text.empty() ? "" : "; ") + memory;
  if (!text.empty()) return text;
  return util::format_count(changes) + (changes == 1 ? " figure" : " figures") +
         " changed, but not the time in malloc and free together, nor the memory at the "
         "peak";
}

}  // namespace

Difference difference_of(const Reports& before, const Reports& after) {
  Difference difference;
  std::size_t changes = 0;
  const auto add = [&](ChangeGroup group) {
    changes += group.changes.size() + group.left_out - (group.left_out > 0 ? 1 : 0);
    if (!group.changes.empty()) difference.groups.push_back(std::move(group));
  };
  add(changed_settings(before, after));
  for (const FigureGroup& group : figure_groups()) add(changes_in(group, before, after));
  add(changed_sites(before, after));
  difference.notes = notes_on(before, after);
  difference.headline = headline_of(before, after, changes);
  return difference;
}

std::string difference_text(const Difference& difference) {
  std::string text = printable_text(difference.headline) + ".\n";
  for (const std::string& note : difference.notes) text += printable_text(note) + "\n";
  for (const ChangeGroup& group : difference.groups) {
    std::vector<std::vector<std::string>> rows = {{group.title, "before", "after", ""}};
    for (const Change& change : group.changes) {
      rows.push_back({"  " + printable_text(change.name), printable_text(change.before),
                      printable_text(change.after), change.change});
    }
    text += "\n" + text_table(rows);
  }
  return text + "\n" + kNoiseRule + "\n";
}

}  // namespace cupool::cli
