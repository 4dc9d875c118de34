// SPDX-License-Identifier: Apache-2.0
// The reports of a job: from files and directories, in the order of their ranks.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "cli/page/model.h"
#include "cli/shell/exit_code.h"
#include "cli/shell/terminal.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr const char* kReading = "reading report";

// Names that end in .json, sorted.
std::vector<std::string> json_files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".json") files.push_back(entry->path().string());
  }
  if (error) throw ReportError(folder + ": cannot be read: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

// The process of a report. Ranks in containers of one host may have one process id.
using Process = std::tuple<std::string, std::int64_t, std::uint64_t, std::string>;
Process process_of(const Report& report) {
  return {report.host, report.pid, report.start_wall, report.rank};
}

// Orders the reports of a process: snapshots by number, for a clock may be set back, then the one
// at exit.
std::pair<bool, std::uint64_t> age_of(const Report& report) {
  return {report.snapshot_number == 0, report.snapshot_number};
}

void tell_left_out(std::size_t number, const char* one, const char* many, const std::string& why) {
  if (number == 0) return;
  std::fprintf(stderr, "cupool: left out %s %s: %s\n", util::format_count(number).c_str(),
               number == 1 ? one : many, util::printable(why).c_str());
}

// Keeps one report of each process: at exit, or else the latest snapshot. All would count twice.
void keep_latest_of_each(std::vector<Report>* reports) {
  std::map<Process, const Report*> latest;
  for (const Report& report : *reports) {
    const Report*& known = latest[process_of(report)];
    if (known == nullptr || age_of(*known) < age_of(report)) known = &report;
  }
  std::size_t snapshots = 0;
  std::size_t copies = 0;
  std::string copy;
  std::vector<Report> kept;
  for (Report& report : *reports) {
    const Report* const known = latest[process_of(report)];
    if (known == &report) continue;
    if (age_of(report) < age_of(*known)) {
      ++snapshots;
    } else if (copies++ == 0) {
      copy = report.file + " is that of " + known->file;
    }
  }
  for (Report& report : *reports) {
    if (latest[process_of(report)] == &report) kept.push_back(std::move(report));
  }
  *reports = std::move(kept);
  tell_left_out(snapshots, "snapshot", "snapshots", "a later report of the process is among these");
  tell_left_out(copies, "copy of a report", "copies of reports", copy);
}

// A file that was to be read and cannot be.
struct Failure {
  std::string text;
  bool is_schema = false;
};

// What the command was given, as far as it can be read.
struct Reading {
  std::vector<Report> reports;
  std::vector<Failure> failures;
  Progress progress;
};

void read_folder(const std::string& folder, Reading* reading) {
  std::size_t found = 0;
  std::size_t others = 0;
  std::string first;
  const std::vector<std::string> files = json_files_in(folder);
  for (const std::string& file : files) {
    reading->progress.show_step(kReading, static_cast<std::size_t>(&file - files.data()) + 1,
                                files.size());
    try {
      reading->reports.push_back(read_report(file));
      ++found;
    } catch (const SchemaError& error) {
      reading->failures.push_back({error.what(), true});
      ++found;
    } catch (const ReportError& error) {
      if (others++ == 0) first = error.what();
    }
  }
  if (found == 0) {
    throw ReportError(folder + ": no report in this directory (files that end in .json)" +
                      (others == 0 ? "" : "; " + first));
  }
  if (others > 0) {
    reading->progress.clear();
    std::fprintf(stderr, "cupool: passed over %zu file%s of %s: %s\n", others,
                 others == 1 ? "" : "s", util::printable(folder).c_str(),
                 util::printable(first).c_str());
  }
}

void read_named(const std::string& file, std::size_t files, Reading* reading) {
  std::error_code ignored;
  try {
    if (std::filesystem::is_directory(file, ignored)) return read_folder(file, reading);
    const std::size_t step = reading->reports.size() + reading->failures.size() + 1;
    reading->progress.show_step(kReading, step, std::max(files, step));
    reading->reports.push_back(read_report(file));
  } catch (const SchemaError& error) {
    reading->failures.push_back({error.what(), true});
  } catch (const ReportError& error) {
    reading->failures.push_back({error.what(), false});
  }
}

// Ranks by their number, before processes without one, which keep their order.
std::pair<bool, std::uint64_t> place_of(const Report& report) {
  std::uint64_t rank = 0;
  const bool has_rank = util::parse_uint64(report.rank, &rank);
  return {!has_rank, has_rank ? rank : 0};
}

// A file that was named twice is one report.
void drop_repeated(std::vector<Report>* reports) {
  std::set<std::string> seen;
  const auto is_repeated = [&seen](const Report& report) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::canonical(report.file, error);
    return !error && std::filesystem::is_regular_file(path, error) &&
           !seen.insert(path.string()).second;
  };
  reports->erase(std::remove_if(reports->begin(), reports->end(), is_repeated), reports->end());
}

[[noreturn]] void fail(const std::vector<Failure>& failures) {
  std::string text;
  bool is_schema = false;
  for (const Failure& failure : failures) {
    text += (text.empty() ? "" : "\n") + failure.text;
    is_schema = is_schema || failure.is_schema;
  }
  if (!is_schema) {
    text += "\nTo write a report: cupool run --stats json --stats-file report-%p.json -- ./program";
  }
  throw UsageError(text);
}

}  // namespace

std::vector<Report> read_reports(const std::vector<std::string>& files) {
  bool all = true;
  std::vector<Report> reports = read_readable_reports(files, &all);
  if (!all) throw UsageError("all of these files are needed: name only those that are reports");
  return reports;
}

std::vector<Report> read_readable_reports(const std::vector<std::string>& files, bool* all) {
  Reading reading;
  for (const std::string& file : files) read_named(file, files.size(), &reading);
  reading.progress.clear();
  *all = reading.failures.empty();
  std::vector<Report> reports = std::move(reading.reports);
  if (reports.empty() && !*all) fail(reading.failures);
  for (const Failure& failure : reading.failures) {
    std::fprintf(stderr, "cupool: %s\n", util::printable(failure.text).c_str());
  }
  drop_repeated(&reports);
  keep_latest_of_each(&reports);
  std::stable_sort(reports.begin(), reports.end(),
                   [](const Report& a, const Report& b) { return place_of(a) < place_of(b); });
  return reports;
}

}  // namespace cupool::cli
