// SPDX-License-Identifier: Apache-2.0
// The `cupool` command. It does not link the engine: it observes programs from outside, through
// files and child processes.
#include <cstdio>
#include <exception>

#include "cli/command.h"

int main(int argc, char** argv) {
  try {
    return cupool::cli::main_of({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cupool: %s\n", error.what());
    return cupool::cli::exit_usage;
  }
}
