// SPDX-License-Identifier: Apache-2.0
// `cupool compare -- program`: runs the program without and with cupool in turn, and compares
// results and times.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "cli/command.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "cli/shell/settings_arguments.h"
#include "cli/shell/shell_words.h"
#include "cli/trial/comparison.h"
#include "cli/trial/ignored.h"
#include "cli/trial/trials.h"
#include "util/launcher.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr int kUsualRuns = 3;

struct CompareArguments {
  int rounds = kUsualRuns;
  std::vector<std::string> files;
  std::vector<std::string> ignored;
  SettingsArguments settings{report_settings()};
};

// Equal outputs have become one text, which is searched once.
std::vector<Outcome> outcomes_of(const std::vector<Trial>& trials,
                                 const std::vector<std::regex>& ignored,
                                 std::map<Text, Text>* searched) {
  std::vector<Outcome> outcomes;
  for (const Trial& trial : trials) {
    Outcome outcome;
    outcome.ending = trial.end.signal != 0 ? "signal " + std::to_string(trial.end.signal)
                                           : std::to_string(trial.end.exit_code);
    Text& output = (*searched)[trial.output];
    if (output == nullptr) {
      output = ignored.empty()
                   ? trial.output
                   : std::make_shared<const std::string>(comparable(*trial.output, ignored));
    }
    outcome.output = output;
    outcome.files = trial.files;
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
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

const char* word_of(Likeness likeness) {
  switch (likeness) {
    case Likeness::same:
      return "same";
    case Likeness::different:
      return "DIFFERENT";
    case Likeness::unsteady:
      return "unsteady";
    case Likeness::unwritten:
      return "not compared";
    default:
      return "not the same";
  }
}

// What is said where no memory of cudaMalloc was served.
std::string without_peak_in_words(const std::vector<Trial>& trials,
                                  const std::vector<std::string>& program) {
  if (served_other_kinds(trials)) {
    return "No allocation of cudaMalloc: cupool served page-locked or stream-ordered memory, whose "
           "peak is not compared.";
  }
  if (kept_default_pool(trials)) {
    return "No allocation of cudaMalloc: cupool kept the default pool's memory for "
           "cudaMallocAsync, unless the program set its threshold. Its peak is not compared.";
  }
  for (const Trial& trial : trials) {
    if (!trial.reports.empty()) return tell(trial.reports).headline + ".";
  }
  return no_report_in_words(trials.front().end, program);
}

void print_table(const std::vector<ComparedPart>& parts,
                 const std::vector<std::vector<Trial>>& trials,
                 const std::vector<std::string>& program) {
  const Spread without = wall_time(trials[0]);
  const Spread with = wall_time(trials[1]);
  std::vector<std::vector<std::string>> rows = {{"", "without cupool", "with cupool", ""}};
  for (const ComparedPart& part : parts) {
    rows.push_back({printable_text(part.name), part.without, part.with, word_of(part.likeness)});
  }
  rows.push_back(
      {"wall time", spread_text(without), spread_text(with), speed_words(without, with)});
  const std::uint64_t peak = highest_memory(trials[1]);
  if (peak > 0) {
    const std::string processes = processes_of(trials[1]);
    rows.push_back({"peak GPU memory", util::format_bytes(highest_gauge(trials[1], "device_bytes")),
                    util::format_bytes(peak),
                    "of one" + (processes == "1" ? "" : " of " + processes) + " process" +
                        (processes == "1" ? "" : "es") + " on one device"});
  }
  std::fputs(text_table(rows).c_str(), stdout);
  if (!held_memory(trials[1])) {
    std::printf("%s\n", printable_text(without_peak_in_words(trials[1], program)).c_str());
  } else {
    std::puts(
        "GPU memory without cupool is the program's own peak, as counted with cupool, to\n"
        "within 8 MiB a thread; the driver's overhead is not included.");
    print_processes(trials[1]);
  }
  tell_simulated(trials[1]);
}

// All runs and what was found.
struct Found {
  const CompareArguments& arguments;
  const std::vector<std::string>& program;
  std::vector<std::vector<Trial>> trials;  // without cupool, with it
  std::vector<Outcome> without;
  std::vector<Outcome> with;
  std::vector<ComparedPart> parts;

  bool any(Likeness likeness) const {
    return std::any_of(parts.begin(), parts.end(),
                       [likeness](const ComparedPart& part) { return part.likeness == likeness; });
  }
  const ComparedPart& ending() const { return parts[0]; }
  const ComparedPart& output() const { return parts[1]; }
  std::string runs() const {
    return trials[0].size() == 1 ? "1 run each" : std::to_string(trials[0].size()) + " runs each";
  }
  std::string speed() const {
    return speed_sentence(wall_time(trials[0]), wall_time(trials[1]), trials[0].size());
  }
};

// The command as it was given, with more expressions and another number of runs.
std::string command_again(const Found& found, const std::vector<std::string>& ignored, int runs) {
  const CompareArguments& arguments = found.arguments;
  std::vector<std::string> words = {"cupool", "compare"};
  const auto add = [&words](const char* option, const std::string& value) {
    words.emplace_back(option);
    words.push_back(value);
  };
  if (runs != kUsualRuns) add("-n", std::to_string(runs));
  for (const std::string& file : arguments.files) add("--file", file);
  for (const std::string& pattern : arguments.ignored) add("--ignore", pattern);
  for (const std::string& pattern : ignored) add("--ignore", pattern);
  for (const auto& [name, value] : arguments.settings.variables()) add("--set", name + "=" + value);
  words.emplace_back("--");
  words.insert(words.end(), found.program.begin(), found.program.end());
  return shell_words(words);
}

std::vector<std::string> outputs_of(const std::vector<Outcome>& outcomes) {
  std::vector<std::string> outputs;
  for (const Outcome& outcome : outcomes) {
    if (outcome.output->size() > kLargestOutputs) return {};  // nothing is proposed for it
    outputs.push_back(*outcome.output);
  }
  return outputs;
}

// The first output that is not that of the first run without cupool.
const std::string* other_output(const Found& found, const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    if (*outcome.output != *found.without.front().output) return outcome.output.get();
  }
  return nullptr;
}

// Whether all outputs are equal without what `ignored` matches.
bool equal_with(const Found& found, const std::vector<std::string>& ignored) {
  const std::vector<std::regex> patterns = patterns_of(ignored);
  const std::string expected = comparable(*found.without.front().output, patterns);
  return std::all_of(found.with.begin(), found.with.end(), [&](const Outcome& outcome) {
    return comparable(*outcome.output, patterns) == expected;
  });
}

void print_unsteady_output(const Found& found) {
  const std::string* const other = other_output(found, found.without);
  if (other == nullptr) return;
  std::printf(
      "Standard output differs first, without cupool, in\n%s",
      first_difference(*found.without.front().output, *other, "one run", "another").c_str());
  const std::vector<std::string> proposed =
      proposed_ignores(outputs_of(found.without), outputs_of(found.with));
  if (proposed.empty()) {
    std::puts(
        "More than numbers differ, so that no expression is proposed. --ignore REGEX leaves out "
        "its\n"
        "matches, line by line.");
    return;
  }
  std::printf("To leave out the numbers that vary:\n  %s\n%s\n",
              printable_text(command_again(found, proposed, found.arguments.rounds)).c_str(),
              equal_with(found, proposed)
                  ? "With that, the output of these runs is the same without and with cupool."
                  : "With that, the runs without cupool agree, and one with cupool still differs.");
}

void print_unsteady(const Found& found) {
  if (found.output().likeness == Likeness::unsteady) print_unsteady_output(found);
  const bool file =
      std::any_of(found.parts.begin() + 2, found.parts.end(),
                  [](const ComparedPart& part) { return part.likeness == Likeness::unsteady; });
  if (file) {
    std::puts(
        "--ignore does not reach into files: leave out a --file that differs by itself, or have\n"
        "the program print what matters.");
  }
}

void print_differing_output(const Found& found) {
  const std::string* const other = other_output(found, found.with);
  if (found.output().likeness == Likeness::same || other == nullptr) return;
  std::printf("Standard output differs first in\n%s",
              first_difference(*found.without.front().output, *other, "without", "with").c_str());
}

// The end of what a program wrote to standard error, without the last line's end.
std::string tail_of(const std::string& errors) {
  constexpr std::size_t kTail = 2000;
  const std::string tail = errors.substr(errors.size() - std::min(errors.size(), kTail));
  return tail.substr(0, tail.find_last_not_of('\n') + 1);
}

// The end of the program's standard error, if it ended otherwise with cupool.
void print_errors(const Found& found) {
  for (const Trial& trial : found.trials[1]) {
    if (trial.end.shell_code() == found.trials[0].front().end.shell_code() ||
        trial.errors.empty()) {
      continue;
    }
    std::printf("The program's standard error with cupool ends with:\n%s\n",
                tail_of(trial.errors).c_str());
    return;
  }
}

// The time of a run that ended otherwise tells nothing.
void print_speed(const Found& found) {
  if (found.ending().likeness != Likeness::same) return;
  std::printf("Time: %s.\n", found.speed().c_str());
}

int conclude_different(const Found& found) {
  std::printf("\nThe results DIFFER (%s): %s.\n", found.runs().c_str(),
              names_of(found.parts, Likeness::different).c_str());
  print_speed(found);
  if (found.output().likeness == Likeness::different) print_differing_output(found);
  print_errors(found);
  if (found.ending().likeness != Likeness::different) {
    std::printf(
        "To find out which part of cupool matters: %s\n",
        printable_text("cupool compare --free-mode sync -- " + shell_words(found.program)).c_str());
  }
  return exit_negative;
}

int conclude_unsteady(const Found& found) {
  std::printf(
      "\nInconclusive (%s): %s cannot be compared, since it differs from run to run even without "
      "cupool.\n",
      found.runs().c_str(), names_of(found.parts, Likeness::unsteady).c_str());
  print_speed(found);
  print_unsteady(found);
  return exit_inconclusive;
}

int conclude_unjudged(const Found& found) {
  std::printf(
      "\nInconclusive (%s): one run cannot tell whether cupool or the program itself changes %s.\n",
      found.runs().c_str(), names_of(found.parts, Likeness::unjudged).c_str());
  print_speed(found);
  print_differing_output(found);
  print_errors(found);
  std::printf("To tell: %s\n", printable_text(command_again(found, {}, kUsualRuns)).c_str());
  return exit_inconclusive;
}

// A program that fails alike proves little: it may have ended before its work.
int conclude_failed(const Found& found) {
  const ChildEnd& end = found.trials[0].front().end;
  const std::string how = end.signal != 0 ? "signal " + std::to_string(end.signal)
                                          : "exit code " + std::to_string(end.exit_code);
  std::printf(
      "\nInconclusive (%s): the program FAILED with %s, without cupool and with it alike. What it "
      "would do beyond that is not compared.\n",
      found.runs().c_str(), how.c_str());
  const std::string& errors = found.trials[0].front().errors;
  if (!errors.empty()) {
    std::printf("Its standard error without cupool ends with:\n%s\n", tail_of(errors).c_str());
  }
  return exit_inconclusive;
}

int conclude_unwritten(const Found& found) {
  std::printf(
      "\nInconclusive (%s): no run wrote %s, so that it cannot be compared. Name with --file what "
      "the program writes.\n",
      found.runs().c_str(), names_of(found.parts, Likeness::unwritten).c_str());
  print_speed(found);
  return exit_inconclusive;
}

int conclude(const Found& found) {
  if (found.any(Likeness::different)) return conclude_different(found);
  if (found.any(Likeness::unsteady)) return conclude_unsteady(found);
  if (found.any(Likeness::unjudged)) return conclude_unjudged(found);
  if (found.trials[0].front().end.shell_code() != 0) return conclude_failed(found);
  if (found.any(Likeness::unwritten)) return conclude_unwritten(found);
  if (!held_memory(found.trials[1]) && !served_other_kinds(found.trials[1]) &&
      !kept_default_pool(found.trials[1])) {
    std::printf(
        "\nSame results, but cupool served no allocation: the times tell nothing of it (%s).\n",
        found.runs().c_str());
    return exit_ok;
  }
  std::printf("\nSame results, and %s (%s).\n", found.speed().c_str(), found.runs().c_str());
  return exit_ok;
}

int act(const CompareArguments& arguments, const Session& session) {
  const auto variables = arguments.settings.variables();
  if (session.program.empty()) {
    throw UsageError("compare needs a program: cupool compare -- ./program");
  }
  const std::vector<std::regex> ignored = patterns_of(arguments.ignored);
  const std::vector<Way> ways = {{"without cupool", environment_without()},
                                 {"with cupool", environment_with(variables)}};
  Found found{arguments, session.program, {}, {}, {}, {}};
  found.trials = alternate(session.program, ways, arguments.rounds, arguments.files);
  if (const ChildEnd* end = interrupted_end(found.trials)) return hand_on_interrupted(*end);
  std::map<Text, Text> searched;
  found.without = outcomes_of(found.trials[0], ignored, &searched);
  found.with = outcomes_of(found.trials[1], ignored, &searched);
  found.parts = compare_outcomes(found.without, found.with, arguments.files);
  print_table(found.parts, found.trials, session.program);
  return conclude(found);
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
      "3, inconclusive: the results differ between runs without cupool, too, or one run each\n"
      "(-n 1) cannot tell, or the program failed in all runs alike, or no run wrote a named file; "
      "126, the program cannot be "
      "executed; 127, it was not found.");
}

}  // namespace cupool::cli
