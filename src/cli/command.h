// What the sub-commands of `cupool` share: how each joins the command, and how it ends.
// Each lives in a file of its own, command_NAME.cpp, and is known here by one function alone.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace cupool::cli {

/// Exit codes of the command itself; `run` hands on those of the program. The last two are the
/// shell's.
enum ExitCode : int {
  exit_ok = 0,
  exit_negative = 1,  ///< the question was answered with no: something stands in the way, differs
  exit_usage = 2,     ///< bad arguments, or a file that is not what it has to be
  exit_not_executable = 126,
  exit_not_found = 127,
};

/// Input that cannot be used; main prints the text and ends with exit_usage.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where the words of a program begin in the arguments of a sub-command.
enum class ProgramWords {
  none,           ///< it takes no program
  after_options,  ///< `cupool run [options] [--] program args`: at `--` or the first other word
  after_dashes,   ///< `cupool tune [files] [-- program args]`: at `--` only
};

/// One invocation of the command.
struct Session {
  std::vector<std::string> program;  ///< program and its arguments, cut off before parsing
  int exit_code = exit_ok;           ///< what the sub-command leaves
};

/// A sub-command: its App with help text and options. `act` runs after parsing and returns the exit
/// code; it may throw UsageError. Options are bound to what `act` owns (a shared_ptr, say), since
/// both live as long as `app`.
CLI::App* add_command(CLI::App& app, Session& session, const std::string& name,
                      const std::string& description, ProgramWords words,
                      std::function<int(Session&)> act);

/// Each adds its sub-command to `app`; `session` outlives it.
void add_run(CLI::App& app, Session& session);
void add_options(CLI::App& app, Session& session);
void add_replay(CLI::App& app, Session& session);
void add_report(CLI::App& app, Session& session);
void add_observe(CLI::App& app, Session& session);
void add_compare(CLI::App& app, Session& session);
void add_tune(CLI::App& app, Session& session);
void add_doctor(CLI::App& app, Session& session);

/// The whole command: parses, runs the sub-command, prints errors. Returns the exit code.
int main_of(const std::vector<std::string>& arguments);

}  // namespace cupool::cli
