// SPDX-License-Identifier: Apache-2.0
// Runs a program in a fresh process and keeps everything that it showed: a preloaded library can
// only be tested from outside, and a hang must end the test, not the test run.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace preload {

struct Command {
  std::vector<std::string> argv;
  std::map<std::string, std::string> environment;  ///< the whole environment, nothing is inherited
  std::chrono::seconds limit{60};                  ///< after this the whole process group is killed
};

struct ProcessResult {
  int exit_code = -1;  ///< valid if signal is 0 and timed_out is false
  int signal = 0;
  bool timed_out = false;
  int pid = 0;
  double seconds = 0;
  std::string out;
  std::string err;

  /// All of it in words, for the message of a failed test.
  std::string describe() const;
};

/// Runs the command to its end. Throws std::runtime_error if it cannot be started.
ProcessResult run(const Command& command);

}  // namespace preload
