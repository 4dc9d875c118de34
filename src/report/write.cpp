// SPDX-License-Identifier: Apache-2.0
// Writes reports: one whole buffer at a time, without unbounded waits, never fatal.
#include "report/write.h"

#include <errno.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "report/csv.h"
#include "report/json.h"
#include "report/prometheus.h"
#include "report/text.h"
#include "util/log.h"
#include "util/path_pattern.h"
#include "util/place_file.h"
#include "util/standard_error.h"

namespace cupool::report {

namespace {

void write_report(const std::string& path, const std::string& report, std::uint64_t since_wall_ns,
                  bool only_file) {
  if (!path.empty()) {
    const util::Placed placed = util::place_file(path, report, since_wall_ns);
    if (placed == util::Placed::replaced_others) {
      CUPOOL_WARN_ONCE(
          "CUPOOL_STATS_FILE %s: this report replaced one that another process had written "
          "meanwhile. With %%p in the name, each process has its own file",
          path.c_str());
    }
    if (placed != util::Placed::failed || only_file) return;
    CUPOOL_WARN_ONCE("cannot write CUPOOL_STATS_FILE %s: %s; the report goes to standard error",
                     path.c_str(), std::strerror(errno));
  }
  util::write_standard_error(report.data(), report.size());
}

// run.log becomes run.3.log, report becomes report.3; a dot in a folder's name is not an extension.
std::string numbered(const std::string& path, std::uint64_t number) {
  if (path.empty() || number == 0) return path;
  const std::size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return path.substr(0, dot) + "." + std::to_string(number) + path.substr(dot);
}

struct Format {
  const char* extension;  ///< means this format; null: none
  const char* added;      ///< extension of its own file
  std::string (*render)(const stats::Snapshot&);
};
constexpr Format kText{nullptr, ".txt", text_summary};
constexpr Format kFullText{nullptr, ".txt", text_report};
constexpr Format kJson{".json", ".json", json_report};
constexpr Format kCsv{".csv", ".csv", csv_report};
constexpr Format kPrometheus{".prom", ".prom", prometheus_report};

bool is_text(const Format& format) {
  return format.extension == nullptr;
}

bool named_by(const Format& format, const std::string& path) {
  if (format.extension == nullptr) return false;
  const std::string_view extension = format.extension;
  return path.size() > extension.size() &&
         path.compare(path.size() - extension.size(), extension.size(), extension) == 0;
}

using Formats = std::vector<const Format*>;

Formats formats_of(const Destinations& destinations) {
  Formats formats;
  if (destinations.text) formats.push_back(destinations.full_text ? &kFullText : &kText);
  if (destinations.json) formats.push_back(&kJson);
  if (destinations.csv) formats.push_back(&kCsv);
  if (destinations.prometheus) formats.push_back(&kPrometheus);
  return formats;
}

// The file of one of several formats; see Destinations.
std::string path_of(const Format& format, const Formats& formats, const std::string& path) {
  if (path.empty() || formats.size() == 1 || named_by(format, path)) return path;
  for (const Format* other : formats) {
    if (!named_by(*other, path)) continue;
    return path.substr(0, path.size() - std::strlen(other->extension)) + format.added;
  }
  return is_text(format) ? path : path + format.added;
}

void write_format(const Format& format, const Formats& formats, const std::string& path,
                  const stats::Snapshot& snapshot, bool only_file) {
  // The Prometheus file always has the latest figures.
  const bool has_number = &format != &kPrometheus;
  const std::string file =
      path_of(format, formats, has_number ? numbered(path, snapshot.number) : path);
  write_report(file, format.render(snapshot), snapshot.process.start_wall_ns, only_file);
}

// A thousand ranks share the terminal. Who asks a running process for a snapshot wants all of it.
bool is_line_enough(const stats::Snapshot& snapshot, const std::string& path) {
  const std::string& rank = snapshot.process.rank;
  return path.empty() && snapshot.number == 0 && !rank.empty() && rank != "0";
}

}  // namespace

bool write_report_to(const std::string& path, const stats::Snapshot& snapshot) {
  const Format* format = &kFullText;
  for (const Format* each : {&kJson, &kCsv, &kPrometheus}) {
    if (named_by(*each, path)) format = each;
  }
  // The program names the file, and is responsible for its old content.
  return util::place_file(path, format->render(snapshot), UINT64_MAX) != util::Placed::failed;
}

void write_reports(const stats::Snapshot& snapshot, const Destinations& destinations) noexcept {
  const int saved_errno = errno;
  try {
    bool added = false;
    const std::string path =
        util::own_path(destinations.file_pattern, snapshot.process.start_wall_ns, &added);
    if (added && util::warns_of_added_rank()) {
      CUPOOL_WARN_ONCE(
          "CUPOOL_STATS_FILE %s does not tell ranks apart: each rank but 0 adds its own, as in %s. "
          "With %%r in the name, the place is yours to choose",
          destinations.file_pattern.c_str(), path.c_str());
    }
    const Formats formats = formats_of(destinations);
    for (const Format* format : formats) {
      if (destinations.only_prometheus && format != &kPrometheus) continue;
      if (destinations.one_line_of_ranks && is_text(*format) && is_line_enough(snapshot, path)) {
        const std::string line = text_line(snapshot);
        util::write_standard_error(line.data(), line.size());
        continue;
      }
      write_format(*format, formats, path, snapshot, destinations.only_files);
    }
  } catch (...) {
    // No memory for a report: the program ends without one.
  }
  errno = saved_errno;
}

}  // namespace cupool::report
