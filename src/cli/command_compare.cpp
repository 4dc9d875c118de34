// SPDX-License-Identifier: Apache-2.0
// `cupool compare -- program`: runs the program without and with cupool in turn, and compares
// results and times.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <regex>

#include "cli/command.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "cli/shell/settings_arguments.h"
#include "cli/trial/trials.h"
#include "util/launcher.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

struct CompareArguments {
  int rounds = 3;
  std::vector<std::string> files;
  std::vector<std::string> ignored;
  SettingsArguments settings;
};

// Output without the matches of --ignore. Works by lines, so that a greedy pattern cannot match all
// the rest.
std::string comparable(const std::string& output, const std::vector<std::regex>& ignored) {
  if (ignored.empty()) return output;
  std::string kept;
  std::size_t at = 0;
  while (at < output.size()) {
    const std::size_t end = std::min(output.find('\n', at), output.size());
    std::string line = output.substr(at, end - at);
    for (const std::regex& pattern : ignored) line = std::regex_replace(line, pattern, "");
    kept += line;
    if (end < output.size()) kept += '\n';
    at = end + 1;
  }
  return kept;
}

std::vector<std::regex> patterns_of(const std::vector<std::string>& texts) {
  std::vector<std::regex> patterns;
  for (const std::string& text : texts) {
    try {
      patterns.emplace_back(text);
    } catch (const std::regex_error&) {
      throw UsageError("--ignore: not a regular expression (ECMAScript): " + text);
    }
  }
  return patterns;
}

// The compared parts of a run.
struct Outcome {
  std::string ending;
  std::string output;
  std::vector<FileState> files;
};

Outcome outcome_of(const Trial& trial, const std::vector<std::regex>& ignored) {
  Outcome outcome;
  outcome.ending = trial.end.signal != 0 ? "signal " + std::to_string(trial.end.signal)
                                         : std::to_string(trial.end.exit_code);
  outcome.output = comparable(trial.output, ignored);
  outcome.files = trial.files;
  return outcome;
}

// One compared part: is it equal in all runs, and in both ways?
struct Verdict {
  std::string name;
  std::string without;
  std::string with;
  bool same = true;
  bool steady = true;  // equal in all runs without cupool
};

using TextOf = std::string (*)(const Outcome&, std::size_t);

Verdict judge(const std::string& name, const std::vector<Outcome>& without,
              const std::vector<Outcome>& with, TextOf part, TextOf shown, std::size_t index) {
  Verdict verdict;
  verdict.name = name;
  const std::string expected = part(without.front(), index);
  verdict.without = shown(without.front(), index);
  verdict.with = shown(with.front(), index);
  for (const Outcome& outcome : without) {
    if (part(outcome, index) == expected) continue;
    verdict.steady = false;
    verdict.without = "differs from run to run";
  }
  for (const Outcome& outcome : with) {
    if (part(outcome, index) == expected) continue;
    verdict.same = false;
    verdict.with = shown(outcome, index);
  }
  return verdict;
}

std::string size_text(const std::string& content) {
  return util::format_count(content.size()) + " bytes";
}

std::string first_difference(const std::string& a, const std::string& b) {
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto place = static_cast<std::size_t>(at - a.begin());
  const auto line = 1 + static_cast<std::size_t>(std::count(a.begin(), at, '\n'));
  const std::size_t begin = place == 0 ? 0 : a.rfind('\n', place - 1) + 1;
  const auto line_at = [begin](const std::string& text) {
    const std::string whole = text.substr(std::min(begin, text.size()));
    return printable_text(whole.substr(0, std::min<std::size_t>(whole.find('\n'), 100)));
  };
  return "  line " + std::to_string(line) + "\n    without: " + line_at(a) +
         "\n    with:    " + line_at(b) + "\n";
}

std::vector<Verdict> judge_all(const std::vector<Outcome>& without,
                               const std::vector<Outcome>& with,
                               const CompareArguments& arguments) {
  const auto ending = [](const Outcome& outcome, std::size_t) { return outcome.ending; };
  const auto output = [](const Outcome& outcome, std::size_t) { return outcome.output; };
  const auto output_size = [](const Outcome& outcome, std::size_t) {
    return size_text(outcome.output);
  };
  const auto file = [](const Outcome& outcome, std::size_t index) {
    const FileState& state = outcome.files[index];
    return state.exists ? "+" + state.content : std::string();
  };
  const auto file_size = [](const Outcome& outcome, std::size_t index) {
    const FileState& state = outcome.files[index];
    return state.exists ? size_text(state.content) : std::string("not there");
  };
  std::vector<Verdict> verdicts;
  verdicts.push_back(judge("exit code", without, with, ending, ending, 0));
  verdicts.push_back(judge("standard output", without, with, output, output_size, 0));
  for (std::size_t i = 0; i < arguments.files.size(); ++i) {
    verdicts.push_back(judge(arguments.files[i], without, with, file, file_size, i));
  }
  return verdicts;
}

std::string ratio_text(double from, double to) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", to > 0 ? from / to : 0.0);
  return text;
}

std::string speed_sentence(const Spread& without, const Spread& with, std::size_t runs) {
  constexpr std::size_t kFewRuns = 3;
  const std::string times = ratio_text(without.median, with.median);
  if (runs < kFewRuns) {
    return times + " times as fast, but fewer than three runs prove little";
  }
  if (with.highest < without.lowest) return "faster in every run: " + times + " times as fast";
  if (without.highest < with.lowest) return "slower in every run: " + times + " times as fast";
  return "no time difference beyond the spread (medians: " + times + " times as fast)";
}

// "2", or "2 to 3": the processes that reported in each run.
std::string processes_of(const std::vector<Trial>& trials) {
  const auto [least, most] = std::minmax_element(
      trials.begin(), trials.end(),
      [](const Trial& a, const Trial& b) { return a.reports.size() < b.reports.size(); });
  const std::string text = std::to_string(least->reports.size());
  if (most->reports.size() == least->reports.size()) return text;
  return text + " to " + std::to_string(most->reports.size());
}

// What is said of memory when the program is a launcher.
void print_processes(const std::vector<Trial>& trials) {
  const std::vector<Report>& reports = trials.front().reports;
  const std::string processes = processes_of(trials);
  if (processes != "0" && processes != "1") {
    std::printf(
        "%s processes used the GPU in each run with cupool; their memory is not added up.\n",
        processes.c_str());
  }
  for (const std::string& text : modes_in_words(reports)) {
    std::printf("%s\n", printable_text(text).c_str());
  }
  const std::string missing =
      util::launcher_rank().empty() ? missing_ranks_in_words(reports) : std::string();
  if (!missing.empty()) std::printf("%s\n", missing.c_str());
}

void print_table(const std::vector<Verdict>& verdicts,
                 const std::vector<std::vector<Trial>>& trials) {
  const Spread without = wall_time(trials[0]);
  const Spread with = wall_time(trials[1]);
  std::vector<std::vector<std::string>> rows = {{"", "without cupool", "with cupool", ""}};
  for (const Verdict& verdict : verdicts) {
    rows.push_back({printable_text(verdict.name), verdict.without, verdict.with,
                    verdict.same     ? "same"
                    : verdict.steady ? "DIFFERENT"
                                     : "unsteady"});
  }
  rows.push_back({"wall time", spread_text(without), spread_text(with),
                  ratio_text(without.median, with.median) + " times as fast"});
  const std::uint64_t held = highest_held(trials[1]);
  if (held > 0) {
    const std::string processes = processes_of(trials[1]);
    rows.push_back({"peak GPU memory", util::format_bytes(highest_gauge(trials[1], "device_bytes")),
                    util::format_bytes(held),
                    "of one" + (processes == "1" ? "" : " of " + processes) + " process" +
                        (processes == "1" ? "" : "es") + " on one device"});
  }
  std::fputs(text_table(rows).c_str(), stdout);
  if (held == 0) {
    std::puts(
        "No report of cupool: it saw no allocation of GPU memory. To find out why: cupool doctor.");
  } else {
    std::puts(
        "GPU memory without cupool is the program's own peak, as counted with cupool; the\n"
        "driver's overhead is not included.");
    print_processes(trials[1]);
  }
}

int conclude(const std::vector<Verdict>& verdicts, const std::vector<std::vector<Trial>>& trials,
             const std::vector<Outcome>& without, const std::vector<Outcome>& with) {
  const auto differs = [](const Verdict& verdict) { return !verdict.same; };
  const std::string runs =
      std::to_string(trials[0].size()) + (trials[0].size() == 1 ? " run each" : " runs each");
  if (std::none_of(verdicts.begin(), verdicts.end(), differs)) {
    std::printf(
        "\nSame results, and %s (%s).\n",
        speed_sentence(wall_time(trials[0]), wall_time(trials[1]), trials[0].size()).c_str(),
        runs.c_str());
    return exit_ok;
  }
  const bool steady = std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) {
    return verdict.same || verdict.steady;
  });
  const bool differ = std::any_of(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) {
    return !verdict.same && verdict.steady;
  });
  std::printf("\n%s (%s).\n", differ ? "The results DIFFER" : "The results cannot be compared",
              runs.c_str());
  if (!verdicts[1].same) {
    for (const Outcome& outcome : with) {
      if (outcome.output == without.front().output) continue;
      std::printf("Standard output differs first in\n%s",
                  first_difference(without.front().output, outcome.output).c_str());
      break;
    }
  }
  if (!steady) {
    std::puts(
        "Unsteady parts differ from run to run even without cupool. --ignore REGEX excludes times\n"
        "and the like from the comparison.");
  }
  for (const Trial& trial : trials[1]) {
    if (trial.end.shell_code() == trials[0].front().end.shell_code() || trial.errors.empty()) {
      continue;
    }
    const std::size_t tail = trial.errors.size() - std::min<std::size_t>(trial.errors.size(), 2000);
    std::printf("The program's standard error with cupool ends with:\n%s\n",
                trial.errors.substr(tail).c_str());
    break;
  }
  return exit_negative;
}

int act(const CompareArguments& arguments, const Session& session) {
  if (session.program.empty()) {
    throw UsageError("compare needs a program: cupool compare -- ./program");
  }
  const std::vector<std::regex> ignored = patterns_of(arguments.ignored);
  const std::vector<Way> ways = {{"without cupool", environment_without()},
                                 {"with cupool", environment_with(arguments.settings.variables())}};
  const std::vector<std::vector<Trial>> trials =
      alternate(session.program, ways, arguments.rounds, arguments.files);
  if (const ChildEnd* end = interrupted_end(trials)) return hand_on(*end);
  std::vector<Outcome> outcomes[2];
  for (std::size_t way = 0; way < 2; ++way) {
    for (const Trial& trial : trials[way]) outcomes[way].push_back(outcome_of(trial, ignored));
  }
  const std::vector<Verdict> verdicts = judge_all(outcomes[0], outcomes[1], arguments);
  print_table(verdicts, trials);
  return conclude(verdicts, trials, outcomes[0], outcomes[1]);
}

}  // namespace

void add_compare(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command = add_command(
      app, session, "compare", "Run a program without and with cupool and compare.",
      ProgramWords::after_options, [arguments](Session& now) { return act(*arguments, now); });
  command
      ->add_option("-n,--runs", arguments->rounds,
                   "Runs without cupool, and as many with it (default 3)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  command
      ->add_option("--file", arguments->files, "Compare this file after each run; may be repeated")
      ->allow_extra_args(false)
      ->type_name("FILE");
  command
      ->add_option("--ignore", arguments->ignored,
                   "Ignore matches of this regular expression in the output; may be repeated")
      ->allow_extra_args(false)
      ->type_name("REGEX");
  arguments->settings.add_to(*command);
  command->footer(
      "Compares exit code, standard output and the named files byte by byte, wall time and "
      "memory.\n"
      "The program's standard input is empty. Exit code: 0, same results; 1, different results;\n"
      "126, the program cannot be executed; 127, it was not found.");
}

}  // namespace cupool::cli
