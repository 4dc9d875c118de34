// SPDX-License-Identifier: Apache-2.0
// How the command ends: its exit codes, and the error that leads to one of them.
#pragma once

#include <stdexcept>

namespace cupool::cli {

/// Exit codes of the command itself; `run` hands on those of the program. The last two are the
/// shell's.
enum ExitCode : int {
  exit_ok = 0,
  exit_negative = 1,  ///< the answer is no: cupool will not serve the program, the results differ
  exit_usage = 2,     ///< bad arguments, or a file that cannot be used or written
  exit_inconclusive = 3,  ///< no answer: the program's results differ by themselves
  exit_not_executable = 126,
  exit_not_found = 127,
};

/// Unusable input. The command prints the text and ends with exit_usage.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace cupool::cli
