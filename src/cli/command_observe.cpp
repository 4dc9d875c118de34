// SPDX-License-Identifier: Apache-2.0
// `cupool observe -- program`: how much time would cupool save? The program runs unchanged.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/page/observed.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "cli/shell/input.h"
#include "cli/shell/output.h"
#include "cli/shell/program_word.h"
#include "cli/shell/settings_arguments.h"
#include "cli/shell/shell_words.h"
#include "cli/shell/simulated_device.h"
#include "cli/trial/trials.h"
#include "util/launcher.h"
#include "util/path_pattern.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// Observed runs have no series, no trace and no watchers of single blocks or call sites.
std::vector<std::string> decided_settings() {
  std::vector<std::string> decided = report_settings();
  for (const char* variable : {"CUPOOL_STATS_INTERVAL", "CUPOOL_TRACE", "CUPOOL_TRACE_LIMIT",
                               "CUPOOL_LEAKS", "CUPOOL_SITES", "CUPOOL_NVTX"}) {
    decided.emplace_back(variable);
  }
  return decided;
}

struct ObserveArguments {
  std::string json;
  SettingsArguments settings{decided_settings()};
};

std::vector<std::string> report_files(const ScratchFolder& scratch) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    files.push_back(entry.path().string());
  }
  return files;
}

// The file of each report: the letters stand for its own process, rank and host. Reports of one
// name are numbered: report.json, report.1.json.
std::vector<std::string> files_for(const std::string& pattern, const std::vector<Report>& reports) {
  std::vector<std::string> files;
  for (const Report& report : reports) {
    util::PatternValues values = util::pattern_values(report.start_wall);
    if (report.host != values.host) values.node = report.host;
    values.process = std::to_string(report.pid);
    values.host = report.host;
    if (!report.rank.empty()) values.rank = report.rank;
    const std::filesystem::path first(util::expand_path_pattern(pattern, values));
    std::string file = first.string();
    for (int n = 1; std::find(files.begin(), files.end(), file) != files.end(); ++n) {
      const std::string name =
          first.stem().string() + "." + std::to_string(n) + first.extension().string();
      file = (first.parent_path() / name).string();
    }
    files.push_back(file);
  }
  return files;
}

// Refuses a file that is no place for a report, before a long run.
void check_file(const std::string& file) {
  if (file == "-") {
    throw UsageError("--json -: standard output is the program's. Name a file: --json report.json");
  }
  if (is_program_file(file)) {
    throw UsageError("--json " + file +
                     ": a program, which the report would overwrite. To observe it: cupool observe "
                     "--json report.json -- " +
                     shell_words({file}));
  }
  require_writable(file);
}

// Copies the reports to their files. Returns false, with a line on standard error, if it cannot.
bool keep(const std::vector<Report>& reports, const std::string& pattern) {
  warn_of_letters(pattern);
  const std::vector<std::string> files = files_for(pattern, reports);
  bool all = true;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    try {
      std::string content;
      std::string reason;
      if (!read_regular_file(reports[i].file, INT64_MAX, &content, &reason)) {
        throw UsageError("cannot read " + reports[i].file + ": " + reason);
      }
      write_file(files[i], content);
    } catch (const UsageError& error) {
      std::fprintf(stderr, "cupool: %s\n", util::printable(error.what()).c_str());
      all = false;
    }
  }
  return all;
}

// Prints the findings on standard error: standard output is the program's. Returns false if a
// report could not be kept.
bool tell_what_was_seen(const ScratchFolder& scratch, const ObserveArguments& arguments,
                        const std::vector<std::string>& program, const ChildEnd& end) {
  if (end.signal == 0 && end.exit_code != 0) {
    std::fprintf(
        stderr, "cupool: the program FAILED with exit code %d: it may have ended before its work\n",
        end.exit_code);
  }
  const std::vector<std::string> files = report_files(scratch);
  if (files.empty()) {
    std::fprintf(stderr, "cupool: nothing observed. %s\n",
                 util::printable(no_report_in_words(end, program)).c_str());
    if (end.signal == 0 && !end.leaves_processes) {
      std::fputs(
          "cupool observe measures cudaMalloc and cudaFree alone: cupool compare also judges "
          "page-locked and stream-ordered memory.\n",
          stderr);
    }
    return true;
  }
  if (end.leaves_processes) {
    std::fputs(
        "cupool: processes that the program started still ran at its end; what they allocate is "
        "not observed\n",
        stderr);
  }
  bool all = true;
  std::vector<Report> reports = read_readable_reports(files, &all);
  const bool kept = (arguments.json.empty() || keep(reports, arguments.json)) && all;
  for (Report& report : reports) report.file = "observed";
  std::fprintf(stderr, "\n%s", story_text(reports).c_str());
  if (is_simulated(reports)) std::fprintf(stderr, "%s\n", kSimulatedTimes);
  if (util::launcher_rank().empty()) {  // else the launcher started this command, too
    const std::string missing = missing_ranks_in_words(reports);
    if (!missing.empty()) std::fprintf(stderr, "%s\n", missing.c_str());
  }
  if (is_worth_a_try(reports)) {
    hint("to measure the effect: cupool compare -- " + shell_words(program));
  }
  return kept;
}

int act(const ObserveArguments& arguments, const Session& session) {
  const auto variables = arguments.settings.variables();
  if (!arguments.json.empty()) check_file(arguments.json);
  if (session.program.empty()) {
    throw UsageError("observe needs a program: cupool observe -- ./program");
  }
  ChildStart start;
  start.argv = session.program;
  start.environment = environment_with(variables);
  start.environment.set("CUPOOL_MODE", "observe");
  start.sees_orphans = true;
  ChildEnd end;
  bool kept = true;
  {  // the folder goes before a signal ends this process, too
    const ScratchFolder scratch;
    start.environment.set("CUPOOL_STATS_FILE", scratch.path() + "/report-%h-%r-%p.json");
    end = run_child(start);
    if (end.start_code == 0) kept = tell_what_was_seen(scratch, arguments, session.program, end);
  }
  const int code = hand_on(end);
  return code == exit_ok && !kept ? exit_usage : code;
}

}  // namespace

void add_observe(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<ObserveArguments>();
  CLI::App* command = add_command(
      app, session, "observe", "Estimate the time that cupool would save a program.",
      ProgramWords::after_options, [arguments](Session& now) { return act(*arguments, now); });
  command
      ->add_option("--json", arguments->json,
                   "Keep the report in this file; % letters as in CUPOOL_STATS_FILE")
      ->type_name("FILE");
  arguments->settings.add_to(*command);
  command->footer(
      "The program runs unchanged: every call goes to the driver and is measured\n"
      "(CUPOOL_MODE=observe). Prints the findings on standard error when the program has\n"
      "ended, and ends with its exit code.");
}

}  // namespace cupool::cli
