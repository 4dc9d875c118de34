// From what a user types to the ELF file that the kernel starts: PATH, and scripts' first lines.
#pragma once

#include <string>
#include <vector>

#include "cli/child.h"

namespace cupool::cli {

struct ProgramFile {
  std::vector<std::string> chain;    ///< the program, then each interpreter; the last is what runs
  bool script = false;               ///< more than one in the chain
  bool empties_environment = false;  ///< `env -i` on the way: no preload arrives
  std::string problem;               ///< not empty: it cannot be started, and why

  const std::string& executable() const { return chain.back(); }
  /// Whether what runs is a Python interpreter (by its name).
  bool is_python() const;
};

/// Follows `#!` lines as the kernel does, and `env` to the program that it starts.
ProgramFile find_program_file(const std::string& name, const Environment& environment);

/// The words of a `#!` line: interpreter and, if there is one, its single argument. Empty if the
/// text does not begin with `#!` and an interpreter. Pure.
std::vector<std::string> interpreter_of(const std::string& first_bytes);

}  // namespace cupool::cli
