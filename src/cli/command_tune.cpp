// SPDX-License-Identifier: Apache-2.0
// `cupool tune report...` derives settings from reports; `cupool tune -- program` also tests them.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/page/text.h"
#include "cli/shell/output.h"
#include "cli/shell/settings_arguments.h"
#include "cli/shell/shell_words.h"
#include "cli/trial/comparison.h"
#include "cli/trial/trials.h"
#include "cli/trial/tuning.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

struct TuneArguments {
  std::vector<std::string> reports;
  std::string output;
  int rounds = 3;
  SettingsArguments settings{report_settings()};
};

std::vector<Report> read_pooled(const std::vector<std::string>& files) {
  std::vector<Report> reports = read_reports(files);
  for (const Report& report : reports) {
    if (report.observe) {
      throw UsageError(
          report.file +
          ": from an observed run, in which cupool served nothing. Use a report of cupool run");
    }
  }
  return reports;
}

void write_settings(const std::string& file, const Tuning& tuning,
                    const std::vector<Report>& reports) {
  const std::size_t number = tuning.settings.size();
  tell_written(write_text(file, env_file(tuning, reports)),
               std::to_string(number) + (number == 1 ? " setting" : " settings"));
}

int tune_from_reports(const TuneArguments& arguments) {
  for (const std::string& file : arguments.reports) {
    std::error_code ignored;
    const std::filesystem::path path(file);
    if (path.extension() == ".json" || std::filesystem::exists(path, ignored)) continue;
    throw UsageError(file + ": not found, neither as a program nor as a report");
  }
  const std::vector<Report> reports = read_pooled(arguments.reports);
  write_settings(arguments.output, tune(reports), reports);
  if (!arguments.output.empty()) {
    hint("cupool run --profile " + arguments.output + " -- " + reports.front().program);
  }
  return exit_ok;
}

void print_settings(const Tuning& tuning) {
  for (const TunedSetting& setting : tuning.settings) {
    std::printf("%s=%s\n  %s\n", setting.name.c_str(), setting.value.c_str(),
                printable_text(setting.reason).c_str());
  }
  for (const std::string& remark : tuning.remarks) {
    std::printf("%s\n", printable_text(remark).c_str());
  }
}

constexpr stats::Counter kFreeWait = stats::Counter::free_wait_ns_total;

void print_table(const std::vector<std::vector<Trial>>& trials) {
  std::vector<std::vector<std::string>> rows = {
      {"", "wall time", "peak GPU memory", std::string(label_of(kFreeWait))}};
  const char* const names[] = {"before", "tuned"};
  for (std::size_t way = 0; way < 2; ++way) {
    std::vector<double> waited;
    for (const Trial& trial : trials[way]) {
      double sum = 0;
      for (const Report& report : trial.reports) {
        sum += static_cast<double>(report.counter(kFreeWait));
      }
      waited.push_back(sum);
    }
    rows.push_back(
        {names[way], spread_text(wall_time(trials[way])),
         util::format_bytes(highest_memory(trials[way])),
         util::format_duration_ns(static_cast<std::uint64_t>(spread_of(waited).median))});
  }
  std::printf("\n%s\n", text_table(rows).c_str());
  tell_simulated(trials.back());
}

// The first trial whose program failed, or null: a failing program is not tuned.
const Trial* failed(const std::vector<std::vector<Trial>>& trials) {
  for (const std::vector<Trial>& of_way : trials) {
    for (const Trial& trial : of_way) {
      if (trial.end.shell_code() != 0) return &trial;
    }
  }
  return nullptr;
}

int give_up(const Trial& trial) {
  if (trial.end.start_code == 0) {
    std::fputs(trial.errors.c_str(), stderr);
    std::fprintf(stderr, "cupool: the program failed, so it is not tuned\n");
  }
  return hand_on_interrupted(trial.end);
}

int tune_program(const TuneArguments& arguments, const std::vector<std::string>& program,
                 const std::vector<std::pair<std::string, std::string>>& variables) {
  require_writable(arguments.output);
  const Environment before = environment_with(variables);
  const std::vector<std::vector<Trial>> first = alternate(program, {{"first run", before}}, 1, {});
  if (const Trial* trial = failed(first)) return give_up(*trial);
  const std::vector<Report>& reports = first[0][0].reports;
  if (reports.empty()) {
    std::printf("%s\n", printable_text(no_report_in_words(first[0][0].end, program)).c_str());
    return exit_negative;
  }
  const Tuning tuning = tune(reports);
  print_settings(tuning);
  if (tuning.settings.empty()) return exit_negative;
  Environment tuned = before;
  for (const auto& [name, value] : tuning.variables()) tuned.set(name, value);
  const std::vector<std::vector<Trial>> trials =
      alternate(program, {{"old settings", before}, {"tuned", tuned}}, arguments.rounds, {});
  if (const Trial* trial = failed(trials)) return give_up(*trial);
  print_table(trials);
  const Spread old_time = wall_time(trials[0]);
  const Spread new_time = wall_time(trials[1]);
  const bool better = new_time.median < old_time.median;
  const bool sure = new_time.highest < old_time.lowest || old_time.highest < new_time.lowest;
  const bool few = trials[0].size() < kFewRuns;
  if (!better || !sure || few) {
    const std::string speed = speed_sentence(old_time, new_time, trials[0].size());
    std::printf("%s: keep the old settings%s.\n",
                few      ? ("The tuned settings are " + speed).c_str()
                : better ? "No time difference beyond the spread"
                         : "The tuned settings are not faster",
                arguments.output.empty() ? "" : "; no file was written");
    return exit_negative;
  }
  std::printf("The tuned settings are %.2f times as fast, faster in every run: keep them.\n",
              old_time.median / new_time.median);
  if (arguments.output.empty()) {
    hint("-o FILE saves them for cupool run --profile FILE");
    return exit_ok;
  }
  write_settings(arguments.output, tuning, reports);
  return exit_ok;
}

int act(const TuneArguments& arguments, const Session& session) {
  const auto variables = arguments.settings.variables();
  if (arguments.reports.empty() == session.program.empty()) {
    throw UsageError(
        "tune needs either reports or a program: cupool tune report.json, or "
        "cupool tune ./program");
  }
  return session.program.empty() ? tune_from_reports(arguments)
                                 : tune_program(arguments, session.program, variables);
}

}  // namespace

void add_tune(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<TuneArguments>();
  CLI::App* command = add_command(
      app, session, "tune", "Derive settings from reports or from runs of a program.",
      ProgramWords::after_files, [arguments](Session& now) { return act(*arguments, now); });
  command->add_option("reports", arguments->reports, "Reports, as CUPOOL_STATS=json writes them")
      ->type_name("FILE");
  command->add_option("-o,--output", arguments->output, "Write the settings to this file")
      ->check(overwrites_input)
      ->type_name("FILE");
  command
      ->add_option("-n,--runs", arguments->rounds,
                   "Runs without the new settings, and as many with them (default 3, and at least "
                   "that many to keep settings)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  arguments->settings.add_to(*command);
  command->footer(
      "With reports: prints a profile with the reasons as comments. With a program (a file that "
      "can\n"
      "be executed, or the words behind --): runs it once,\n"
      "then without and with the derived settings in turn. Keeps the settings only if each run\n"
      "with them was faster than every run without.\n"
      "Exit code: 0, kept; 1, not kept, no file written.");
}

}  // namespace cupool::cli
