// SPDX-License-Identifier: Apache-2.0
// Finds the ELF file that the kernel starts for a command: PATH, then the first lines of scripts.
#pragma once

#include <string>
#include <vector>

#include "cli/shell/child.h"

namespace cupool::cli {

struct ProgramFile {
  std::vector<std::string> chain;    ///< the program, then each interpreter; the last one runs
  bool script = false;               ///< the chain has more than one entry
  bool empties_environment = false;  ///< `env -i` in the chain removes LD_PRELOAD
  std::string problem;               ///< why it cannot be started; "" if it can

  const std::string& executable() const { return chain.back(); }
  /// Whether the executable is a Python interpreter, by its name.
  bool is_python() const;
};

/// Follows `#!` lines as the kernel does, and `env` to its program.
ProgramFile find_program_file(const std::string& name, const Environment& environment);

/// The interpreter of a `#!` line and its single argument, if any. Empty without `#!` and an
/// interpreter. Pure.
std::vector<std::string> interpreter_of(const std::string& first_bytes);

}  // namespace cupool::cli
