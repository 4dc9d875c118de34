// SPDX-License-Identifier: Apache-2.0
// Runs a program at a terminal: what it says to a person only is seen nowhere else.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace cli {

struct TerminalRun {
  int status = 0;      ///< as waitpid gives it
  std::string output;  ///< all that the terminal showed, carriage returns removed
};

/// Runs the command in a session of its own whose terminal is a pseudo terminal. Calls
/// `at_output` after each piece of output with all output so far and the process id. Throws
/// std::runtime_error if it takes longer than 60 s.
TerminalRun run_at_terminal(
    const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
    const std::function<void(const std::string& output, int pid, int terminal)>& at_output = {});

}  // namespace cli
