// SPDX-License-Identifier: Apache-2.0
// `cupool run program`: starts the program with cupool, and otherwise as a shell would.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/doctor/preload_check.h"
#include "cli/shell/child.h"
#include "cli/shell/library.h"
#include "cli/shell/output.h"
#include "cli/shell/program_word.h"
#include "cli/shell/settings_arguments.h"
#include "cli/shell/shell_words.h"
#include "cli/shell/terminal.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

struct RunArguments {
  SettingsArguments settings;
  bool print = false;
};

void print_command(const Environment& environment, const RunArguments& arguments,
                   const std::vector<std::string>& program) {
  std::string line = "LD_PRELOAD=" + shell_word(environment.get("LD_PRELOAD"));
  for (const auto& [name, value] : arguments.settings.variables()) {
    line += " " + name + "=" + shell_word(value);
  }
  std::printf("%s %s\n", line.c_str(), shell_words(program).c_str());
}

// Hints at the next useful command.
void suggest_next(const RunArguments& arguments, const std::vector<std::string>& program,
                  const ChildEnd& end) {
  const std::string words = shell_words(program);
  if (end.start_code != 0 || end.signal == SIGINT) return;
  if (end.signal != 0) {
    hint("signal " + std::to_string(end.signal) +
         " ended the program. To rule out cupool: cupool run --enable 0 -- " + words);
    return;
  }
  // Behind a report, advice for want of one would puzzle.
  if (!shows_cuda(program.front(), Environment::inherited())) {
    hint("its file shows no way to CUDA. If it should use the GPU: cupool doctor " + words);
  }
  for (const auto& [name, value] : arguments.settings.variables()) {
    if (name == "CUPOOL_STATS_FILE") return;
  }
  hint("to keep the report: cupool run --stats json --stats-file report-%p.json -- " + words);
}

// What would only be told at the end of a long run. The program may make the folder yet, or run on
// another machine.
void warn_of_files(const std::vector<std::pair<std::string, std::string>>& variables) {
  for (const auto& [name, value] : variables) {
    if (name != "CUPOOL_STATS_FILE" && name != "CUPOOL_TRACE") continue;
    if (is_program_file(value)) {
      throw UsageError(name + "=" + value +
                       " is a program and would be overwritten. Name a new file");
    }
    const std::string folder = std::filesystem::path(value).parent_path().string();
    if (folder.find('%') != std::string::npos) continue;
    try {
      require_writable(value);
    } catch (const UsageError& error) {
      std::fprintf(stderr, "cupool: so far, %s\n", util::printable(error.what()).c_str());
    }
  }
}

int act(const RunArguments& arguments, const Session& session) {
  const auto variables = arguments.settings.variables();  // one may have taken the program's word
  if (session.program.empty()) throw UsageError("run needs a program: cupool run ./program");
  ChildStart start;
  start.argv = session.program;
  start.environment = preloaded_environment(variables);
  if (arguments.print) {
    print_command(start.environment, arguments, session.program);
    return exit_ok;
  }
  warn_of_files(variables);
  const std::string reason =
      reason_not_to_preload(session.program.front(), find_library(), Environment::inherited());
  if (!reason.empty()) {
    std::fprintf(stderr,
                 "cupool: the program runs without cupool, which would keep it from starting: %s\n",
                 reason.c_str());
    start.environment = Environment::inherited();
  }
  // Without a terminal there is nobody to hint at: the program replaces this process.
  if (!is_terminal(STDERR_FILENO)) return become(start);
  const ChildEnd end = run_child(start);
  suggest_next(arguments, session.program, end);
  return hand_on(end);
}

}  // namespace

void add_run(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<RunArguments>();
  CLI::App* command =
      add_command(app, session, "run", "Run a program with cupool.", ProgramWords::after_options,
                  [arguments](Session& now) { return act(*arguments, now); });
  command->add_flag("--print", arguments->print, "Print the command instead of running it");
  arguments->settings.add_to(*command);
  command->footer(
      "Puts the library first in LD_PRELOAD, forwards signals to the program, and ends with its\n"
      "exit code or signal. A program whose loader refuses the library runs without cupool. 126: "
      "the program cannot be executed; 127: it was not found.");
}

}  // namespace cupool::cli
