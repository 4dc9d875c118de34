// SPDX-License-Identifier: Apache-2.0
// The frame of the command: registers sub-commands, cuts off the program's words, reports errors.
// Each sub-command is a file command_NAME.cpp with one function here; command_reference.cpp has
// those about the command itself.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cli/reference/command_table.h"
#include "cli/shell/exit_code.h"

namespace cupool::cli {

/// One invocation of the command.
struct Session {
  std::vector<std::string> program;  ///< program and arguments, removed before parsing
  int exit_code = exit_ok;           ///< set by the sub-command
};

/// Adds a sub-command to `app` and returns it. `act` runs after parsing and returns the exit code;
/// it may throw UsageError. Bind options to objects that `act` owns (by a shared_ptr, say): it
/// lives as long as `app`.
CLI::App* add_command(CLI::App& app, Session& session, const std::string& name,
                      const std::string& description, ProgramWords words,
                      std::function<int(Session&)> act);

/// Where the program's words begin in the sub-command `name`; none for an unknown one.
ProgramWords program_words_of(const std::string& name);

/// Each adds its sub-command to `app`. `session` must outlive `app`.
void add_run(CLI::App& app, Session& session);
void add_env(CLI::App& app, Session& session);
void add_options(CLI::App& app, Session& session);
void add_replay(CLI::App& app, Session& session);
void add_report(CLI::App& app, Session& session);
void add_diff(CLI::App& app, Session& session);
void add_observe(CLI::App& app, Session& session);
void add_compare(CLI::App& app, Session& session);
void add_top(CLI::App& app, Session& session);
void add_tune(CLI::App& app, Session& session);
void add_doctor(CLI::App& app, Session& session);
/// Adds completion, man and help.
void add_reference(CLI::App& app, Session& session);

/// Parses the arguments, runs the sub-command, prints errors. Returns the exit code.
int main_of(const std::vector<std::string>& arguments);

}  // namespace cupool::cli
