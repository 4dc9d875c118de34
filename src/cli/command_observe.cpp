// SPDX-License-Identifier: Apache-2.0
// `cupool observe -- program`: how much time would cupool save? The program runs unchanged.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/page/text.h"
#include "cli/shell/settings_arguments.h"
#include "cli/shell/shell_words.h"
#include "cli/trial/trials.h"

namespace cupool::cli {

namespace {

struct ObserveArguments {
  std::string json;
  SettingsArguments settings;
};

std::vector<std::string> report_files(const ScratchFolder& scratch) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    files.push_back(entry.path().string());
  }
  return files;
}

// report.json for the first process, report.1.json for the second.
std::string numbered(const std::string& file, std::size_t number) {
  if (number == 0) return file;
  const std::filesystem::path path(file);
  const std::string name =
      path.stem().string() + "." + std::to_string(number) + path.extension().string();
  return (path.parent_path() / name).string();
}

void keep(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, error);
  if (error)
    std::fprintf(stderr, "cupool: cannot write %s: %s\n", to.c_str(), error.message().c_str());
}

// Prints the findings on standard error: standard output is the program's.
void tell_what_was_seen(const ScratchFolder& scratch, const ObserveArguments& arguments,
                        const std::vector<std::string>& program) {
  const std::vector<std::string> files = report_files(scratch);
  if (files.empty()) {
    std::fprintf(stderr,
                 "cupool: nothing observed: cupool saw no process allocate GPU memory. "
                 "To find out why: cupool doctor %s\n",
                 shell_words(program).c_str());
    return;
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    Report report = read_report(files[i]);
    report.file = "observed";
    std::fprintf(stderr, "\n%s", story_text({report}).c_str());
    if (!arguments.json.empty()) keep(files[i], numbered(arguments.json, i));
  }
  hint("to measure the effect: cupool compare -- " + shell_words(program));
}

int act(const ObserveArguments& arguments, const Session& session) {
  if (session.program.empty()) {
    throw UsageError("observe needs a program: cupool observe -- ./program");
  }
  const ScratchFolder scratch;
  ChildStart start;
  start.argv = session.program;
  start.environment = preloaded_environment(arguments.settings.variables());
  start.environment.set("CUPOOL_MODE", "observe");
  start.environment.set("CUPOOL_STATS", "json");
  start.environment.set("CUPOOL_STATS_FILE", scratch.path() + "/report-%p.json");
  const ChildEnd end = run_child(start);
  std::fflush(stdout);
  if (end.start_code == 0) tell_what_was_seen(scratch, arguments, session.program);
  return hand_on(end);
}

}  // namespace

void add_observe(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<ObserveArguments>();
  CLI::App* command = add_command(
      app, session, "observe", "Estimate the time that cupool would save a program.",
      ProgramWords::after_options, [arguments](Session& now) { return act(*arguments, now); });
  command->add_option("--json", arguments->json, "Keep the report in this file")->type_name("FILE");
  arguments->settings.add_to(*command);
  command->footer(
      "The program runs unchanged: every call goes to the driver and is measured\n"
      "(CUPOOL_MODE=observe). Prints the findings on standard error when the program has\n"
      "ended, and ends with its exit code.");
}

}  // namespace cupool::cli
