// SPDX-License-Identifier: Apache-2.0
// `cupool replay trace.csv`: plays a program's allocations with three allocators.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command.h"
#include "cli/page/text.h"
#include "cli/shell/input.h"
#include "cli/shell/output.h"
#include "cli/shell/settings_arguments.h"
#include "cli/trial/replay_player.h"
#include "cli/trial/trials.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

// Each way is a process of its own, since only one of them may load cupool.
constexpr const char* kLegacy = "legacy";
constexpr const char* kAsync = "async";
constexpr const char* kCupool = "cupool";

struct ReplayArguments {
  std::string trace;
  int rounds = 3;
  bool touch = false;
  std::string play_as;  // set in a child: play, and print the figures as JSON
  SettingsArguments settings{report_settings()};
};

int play_here(const ReplayArguments& arguments) {
  ReplayOptions options;
  options.stream_ordered = arguments.play_as == kAsync;
  options.touch = arguments.touch;
  const ReplayTrace trace = parse_trace(read_trace(arguments.trace), arguments.trace);
  std::puts(play(trace, options).c_str());
  return exit_ok;
}

std::vector<std::string> player_words(const ReplayArguments& arguments, const std::string& as,
                                      const std::string& trace) {
  std::vector<std::string> words = {"/proc/self/exe", "replay", "--play-as", as};
  if (arguments.touch) words.emplace_back("--touch");
  words.push_back(trace);
  return words;
}

struct Figures {
  std::vector<double> wall, in_allocate, in_free, allocate_p50, allocate_p99, free_p50, free_p99;
  std::uint64_t failed = 0;
  std::uint64_t refused = 0;
};

Figures figures_of(const std::vector<Trial>& trials) {
  Figures figures;
  for (const Trial& trial : trials) {
    const nlohmann::json json = nlohmann::json::parse(*trial.output);
    const auto number = [&json](const char* part, const char* key) {
      return json.at(part).at(key).get<double>();
    };
    figures.wall.push_back(json.at("wall_ns").get<double>());
    figures.in_allocate.push_back(number("allocate", "sum_ns"));
    figures.in_free.push_back(number("free", "sum_ns"));
    figures.allocate_p50.push_back(number("allocate", "p50_ns"));
    figures.allocate_p99.push_back(number("allocate", "p99_ns"));
    figures.free_p50.push_back(number("free", "p50_ns"));
    figures.free_p99.push_back(number("free", "p99_ns"));
    figures.failed = std::max(figures.failed, json.at("failed").get<std::uint64_t>());
    figures.refused = std::max(figures.refused, json.at("refused").get<std::uint64_t>());
  }
  return figures;
}

std::string median_text(const std::vector<double>& values) {
  return format_duration_ns(static_cast<std::uint64_t>(spread_of(values).median));
}

void print_trace(const ReplayTrace& trace) {
  std::printf(
      "%s allocations and %s frees of %zu %s; at most %s live at once%s.\n\n",
      format_count(trace.allocations).c_str(), format_count(trace.frees).c_str(),
      trace.threads.size(), trace.threads.size() == 1 ? "thread" : "threads",
      format_bytes(trace.peak_bytes).c_str(),
      trace.skipped == 0 ? "" : ("; " + format_count(trace.skipped) + " rows skipped").c_str());
}

void print_table(const std::vector<std::string>& names, const std::vector<Figures>& figures) {
  std::vector<std::vector<std::string>> rows = {
      {"", "wall time", "in malloc", "p50", "p99", "in free", "p50", "p99", "failed"}};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Figures& way = figures[i];
    rows.push_back({names[i], spread_text(spread_of(way.wall)), median_text(way.in_allocate),
                    median_text(way.allocate_p50), median_text(way.allocate_p99),
                    median_text(way.in_free), median_text(way.free_p50), median_text(way.free_p99),
                    format_count(way.failed)});
  }
  std::fputs(text_table(rows).c_str(), stdout);
}

// Where the players find the trace: a pipe has been read, and their standard input is empty.
std::string trace_for_players(const std::string& file, std::string text,
                              const ScratchFolder& scratch) {
  std::string path = path_for_others(file);
  if (!path.empty()) return path;
  path = scratch.path() + "/trace.csv";
  write_file(path, text);
  return path;
}

// Runs the ways in turn, each run in a process of its own.
std::vector<std::vector<Trial>> play_in_turn(const ReplayArguments& arguments, std::string text,
                                             const std::vector<Way>& ways) {
  std::vector<std::vector<Trial>> trials(ways.size());
  const ScratchFolder scratch;
  const std::string trace = trace_for_players(arguments.trace, std::move(text), scratch);
  std::vector<std::size_t> order;
  for (std::size_t run = 0; run < ways.size() * static_cast<std::size_t>(arguments.rounds); ++run) {
    order.push_back(run % ways.size());
  }
  RunProgress progress(names_of(ways), order);
  for (const std::size_t way : order) {
    trials[way].push_back(run_trial(player_words(arguments, ways[way].name, trace), ways[way], {},
                                    scratch, &progress));
    if (trials[way].back().end.shell_code() != 0) return trials;
  }
  return trials;
}

int act(const ReplayArguments& arguments) {
  if (!arguments.play_as.empty()) return play_here(arguments);
  const auto variables = arguments.settings.variables();
  std::string text = read_trace(arguments.trace);
  const ReplayTrace trace = parse_trace(text, arguments.trace);
  if (trace.allocations == 0) throw UsageError(arguments.trace + ": has no allocations");
  const std::vector<Way> ways = {{kLegacy, environment_without()},
                                 {kAsync, environment_without()},
                                 {kCupool, environment_with(variables)}};
  const std::vector<std::vector<Trial>> trials = play_in_turn(arguments, std::move(text), ways);
  for (const std::vector<Trial>& of_way : trials) {
    for (const Trial& trial : of_way) {
      if (trial.end.shell_code() == 0) continue;
      std::fputs(trial.errors.c_str(), stderr);
      return hand_on(trial.end);
    }
  }
  print_trace(trace);
  std::vector<Figures> figures;
  figures.reserve(trials.size());
  for (const std::vector<Trial>& of_way : trials) figures.push_back(figures_of(of_way));
  print_table({"legacy (cuMemAlloc)", "async (cuMemAllocAsync)", "cupool"}, figures);
  std::printf(
      "\nMedians of %d run%s. Calls follow one another without the program's own work between "
      "them%s.\n",
      arguments.rounds, arguments.rounds == 1 ? "" : "s",
      arguments.touch ? ";\neach block is written on the GPU"
                      : ",\nso no free finds the GPU busy (--touch writes each block)");
  tell_simulated(trials.back());  // the others have no report
  for (const Figures& way : figures) {
    if (way.refused != 0) return exit_negative;
  }
  return exit_ok;
}

}  // namespace

void add_replay(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<ReplayArguments>();
  CLI::App* command =
      add_command(app, session, "replay", "Replay a trace of allocations with three allocators.",
                  ProgramWords::none, [arguments](Session&) { return act(*arguments); });
  command
      ->add_option("trace", arguments->trace,
                   "A trace, as CUPOOL_TRACE=run.csv writes it (-: standard input)")
      ->required()
      ->type_name("FILE");
  command->add_option("-n,--runs", arguments->rounds, "Runs with each allocator (default 3)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  command->add_flag("--touch", arguments->touch,
                    "Write each block on the GPU, so that frees find it busy");
  command->add_option("--play-as", arguments->play_as)
      ->check(CLI::IsMember({kLegacy, kAsync, kCupool}))
      ->group("");
  arguments->settings.add_to(*command);
  command->footer(
      "Replays the calls of the trace on device 0, with one thread per thread of the trace:\n"
      "with cuMemAlloc, with cuMemAllocAsync and the device's default pool, and with cupool.");
}

}  // namespace cupool::cli
