// SPDX-License-Identifier: Apache-2.0
// The headings are the labels of the reports, shortened: "freed, GPU still using it" is "freed".
#include "cli/top/table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/shell/terminal.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {
namespace {

using stats::Counter;
using stats::Gauge;
using stats::LiveDevice;
using stats::LiveFigures;
using util::format_count;
using State = LiveProcess::State;

// A negative figure is a bug that should show.
std::string bytes_text(std::int64_t bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  return bytes < 0 ? "-" + util::format_bytes(0 - size) : util::format_bytes(size);
}

const LiveProcess* before_of(const LiveReading& reading, const LiveProcess& process) {
  for (const LiveProcess& old : reading.before) {
    // Another process may have got the number.
    if (old.pid == process.pid && old.told() && process.told() &&
        old.figures.time_ns < process.figures.time_ns) {
      return &old;
    }
  }
  return nullptr;
}

// Calls in a second since the reading before.
std::string rate_of(const LiveReading& reading, const LiveProcess& process, Counter counter) {
  const LiveProcess* const old = before_of(reading, process);
  if (old == nullptr || old->all[counter] > process.all[counter]) return "-";
  const auto calls = static_cast<double>(process.all[counter] - old->all[counter]);
  const auto seconds = static_cast<double>(process.figures.time_ns - old->figures.time_ns) / 1e9;
  return format_count(static_cast<std::uint64_t>(std::min(calls / seconds + 0.5, 1e18)));
}

const char* lane_text(stats::LaneState lane) {
  static constexpr const char* kTexts[stats::kLaneStates] = {"-", "in", "away", "left"};
  return kTexts[static_cast<std::size_t>(lane)];
}

std::string devices_text(const LiveFigures& figures) {
  std::string text;
  for (std::size_t i = 0; i < figures.device_count; ++i) {
    if (figures.devices[i].ordinal < 0) return "many";
    text += (i == 0 ? "" : ",") + std::to_string(figures.devices[i].ordinal);
  }
  if (text.size() > 8) return std::to_string(figures.device_count) + " GPUs";
  return text.empty() ? "-" : text;
}

std::string pid_text(const LiveProcess& process) {
  return process.pid == 0 ? "?" : std::to_string(process.pid);
}

// The command, and why there are no figures: first, since the end may be cut off.
std::string command_text(const LiveProcess& process) {
  static constexpr const char* kReasons[] = {"", "(no pools yet) ", "(no answer) ",
                                             "(another version of cupool) "};
  return kReasons[static_cast<std::size_t>(process.state)] + util::printable(process.command);
}

struct Column {
  const char* heading;
  int rank;  ///< columns with the highest are left out first
  std::string (*text)(const LiveReading& reading, const LiveProcess& process);
};

template <Gauge gauge>
std::string gauge_text(const LiveReading&, const LiveProcess& process) {
  return bytes_text(process.all[gauge].current);
}

using R = LiveReading;
using P = LiveProcess;
// The first and the last stay, and have a text for every process.
constexpr Column kColumns[] = {
    {"PID", 0, [](const R&, const P& p) { return pid_text(p); }},
    {"GPU", 3, [](const R&, const P& p) { return devices_text(p.figures); }},
    {"program's", 0, gauge_text<Gauge::device_bytes>},
    {"freed", 1, gauge_text<Gauge::retired_bytes>},
    {"unused", 1, gauge_text<Gauge::cached_bytes>},
    {"reserved", 0,
     [](const R&, const P& p) { return util::format_bytes(p.all.reserved_bytes()); }},
    {"peak", 5, [](const R&, const P& p) { return bytes_text(p.all.peak_taken_bytes); }},
    {"host", 6, gauge_text<Gauge::host_held_bytes>},
    {"allocs/s", 2,
     [](const R& r, const P& p) { return rate_of(r, p, Counter::malloc_calls_total); }},
    {"waiting", 7, [](const R&, const P& p) { return std::to_string(p.figures.waiting); }},
    {"waited", 4,
     [](const R&, const P& p) { return format_count(p.all[Counter::free_waits_total]); }},
    {"mode", 8, [](const R&, const P& p) { return util::printable(p.figures.free_mode.data()); }},
    {"lane", 9, [](const R&, const P& p) { return std::string(lane_text(p.figures.lane)); }},
    {"up", 7, [](const R&, const P& p) { return util::format_duration_ns(p.figures.time_ns); }},
    {"command", 0, [](const R&, const P& p) { return command_text(p); }},
};
constexpr std::size_t kCount = std::size(kColumns);
constexpr std::size_t kLeastCommand = 16;
constexpr std::size_t kMostCommand = 100;

using Cells = std::array<std::string, kCount>;

Cells cells_of(const LiveReading& reading, const LiveProcess& process) {
  Cells cells;
  for (std::size_t i = 0; i < kCount; ++i) {
    const bool is_known = process.told() || i == 0 || i == kCount - 1;
    cells[i] = is_known ? kColumns[i].text(reading, process) : "-";
  }
  return cells;
}

struct Layout {
  std::array<std::size_t, kCount> widths{};  ///< 0: left out
};

Layout layout_of(const std::vector<Cells>& rows, std::size_t columns) {
  Layout layout;
  std::size_t sum = kLeastCommand;
  for (std::size_t i = 0; i + 1 < kCount; ++i) {
    for (const Cells& row : rows) layout.widths[i] = std::max(layout.widths[i], row[i].size());
    sum += layout.widths[i] + 1;
  }
  while (columns != 0 && sum > columns) {
    std::size_t least = 0;
    for (std::size_t i = 0; i + 1 < kCount; ++i) {
      if (layout.widths[i] != 0 && kColumns[i].rank > kColumns[least].rank) least = i;
    }
    if (least == 0) break;
    sum -= layout.widths[least] + 1;
    layout.widths[least] = 0;
  }
  return layout;
}

std::string detail_line(const std::string& label, const std::string& text) {
  return "    " + label + std::string(label.size() < 32 ? 32 - label.size() : 1, ' ') + text + "\n";
}

std::string id_text(const LiveDevice& device) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU";
  for (std::size_t i = 0; i < device.id.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[device.id[i] >> 4];
    text += kDigits[device.id[i] & 15];
  }
  return device.id == decltype(device.id){} ? "" : text;
}

std::string device_text(const LiveDevice& device) {
  if (device.ordinal < 0) return "  further devices\n";
  std::string text = "  device " + std::to_string(device.ordinal) + ": " +
                     util::printable(device.name.data()) + ", " +
                     util::format_bytes(device.total_memory_bytes);
  const std::string id = id_text(device);
  return text + (id.empty() ? "" : ", " + id) + "\n";
}

std::string with_peak(const stats::GaugeValue& value) {
  return bytes_text(value.current) + " (peak " + bytes_text(value.peak) + ")";
}

std::string details_of_device(const LiveDevice& device) {
  std::string text = device_text(device);
  for (const Gauge gauge : stats::kLiveGauges) {
    text += detail_line(std::string(stats::label_of(gauge)), with_peak(device[gauge]));
  }
  text += detail_line(std::string(stats::kPoolReservedLabel),
                      util::format_bytes(device.pool_reserved_bytes));
  return text + detail_line("peak with cupool", bytes_text(device.peak_taken_bytes));
}

std::string counts_text(const LiveReading& reading, const LiveProcess& process, Counter counter) {
  const std::string rate = rate_of(reading, process, counter);
  return format_count(process.all[counter]) + " " + std::string(stats::short_label_of(counter)) +
         (rate == "-" ? "" : " (" + rate + "/s)");
}

std::string details_of(const LiveReading& reading, const LiveProcess& process) {
  std::string text = pid_text(process) + " " + command_text(process) + "\n";
  if (!process.told()) return text;
  const LiveFigures& figures = process.figures;
  text += "  up " + util::format_duration_ns(figures.time_ns) + ", free mode " +
          util::printable(figures.free_mode.data()) + ", backend " +
          util::printable(figures.backend.data()) + ", lane " + lane_text(figures.lane) + "\n";
  text += "  " + counts_text(reading, process, Counter::malloc_calls_total) + ", " +
          counts_text(reading, process, Counter::free_calls_total) + "; " +
          format_count(process.all[Counter::free_waits_total]) + " waited for the GPU (" +
          util::format_duration_ns(process.all[Counter::free_wait_ns_total]) + "), " +
          std::to_string(figures.waiting) + " waiting now\n";
  for (std::size_t i = 0; i < figures.device_count; ++i) {
    text += details_of_device(figures.devices[i]);
  }
  return text;
}

nlohmann::ordered_json json_of(const LiveDevice& device) {
  nlohmann::ordered_json json{{"ordinal", device.ordinal},
                              {"uuid", id_text(device)},
                              {"name", util::printable(device.name.data())},
                              {"total_memory_bytes", device.total_memory_bytes},
                              {"pool_reserved_bytes", device.pool_reserved_bytes},
                              {"peak_taken_bytes", device.peak_taken_bytes}};
  for (const Gauge gauge : stats::kLiveGauges) {
    json[stats::key_of(gauge)] = {{"current", device[gauge].current}, {"peak", device[gauge].peak}};
  }
  for (const Counter counter : stats::kLiveCounters) json[stats::key_of(counter)] = device[counter];
  return json;
}

nlohmann::ordered_json json_of(const LiveProcess& process) {
  static constexpr const char* kStates[] = {"told", "no_pools", "no_answer", "other_version"};
  nlohmann::ordered_json json{{"pid", process.pid},
                              {"command", util::printable(process.command)},
                              {"state", kStates[static_cast<std::size_t>(process.state)]}};
  if (!process.told()) return json;
  const LiveFigures& figures = process.figures;
  json["program"] = util::printable(figures.program.data());
  json["uptime_ns"] = figures.time_ns;
  json["free_mode"] = util::printable(figures.free_mode.data());
  json["backend"] = util::printable(figures.backend.data());
  json["lane"] = lane_text(figures.lane);
  json["waiting"] = figures.waiting;
  json["devices"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < figures.device_count; ++i) {
    json["devices"].push_back(json_of(figures.devices[i]));
  }
  return json;
}

}  // namespace

std::string live_table(const LiveReading& reading, std::size_t columns) {
  std::vector<Cells> rows(1);
  for (std::size_t i = 0; i < kCount; ++i) rows[0][i] = kColumns[i].heading;
  for (const LiveProcess& process : reading.now) rows.push_back(cells_of(reading, process));
  const Layout layout = layout_of(rows, columns);
  std::string text;
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i + 1 < kCount; ++i) {
      if (layout.widths[i] == 0) continue;
      text += std::string(layout.widths[i] - row[i].size(), ' ') + row[i] + " ";
    }
    text += cut_text(row[kCount - 1], kMostCommand) + "\n";
  }
  return text;
}

std::string live_details(const LiveReading& reading) {
  std::string text;
  for (const LiveProcess& process : reading.now) text += details_of(reading, process);
  return text;
}

std::string live_summary(const LiveReading& reading) {
  LiveDevice all;
  for (const LiveProcess& process : reading.now) all.add(process.all);
  const bool one = reading.now.size() == 1;
  return format_count(reading.now.size()) + (one ? " process" : " processes") + ", " +
         util::format_bytes(all.reserved_bytes()) + " reserved, " +
         bytes_text(all[Gauge::device_bytes].current) + (one ? " program's" : " programs'");
}

std::string live_json(const LiveReading& reading, std::uint64_t wall_ns) {
  nlohmann::ordered_json processes = nlohmann::ordered_json::array();
  for (const LiveProcess& process : reading.now) processes.push_back(json_of(process));
  return nlohmann::ordered_json{
             {"schema_version", 1}, {"time_ns", wall_ns}, {"processes", processes}}
             .dump() +
         "\n";
}

}  // namespace cupool::cli
