// SPDX-License-Identifier: Apache-2.0
// Shows progress as the commands that run long do, then one line on standard output.
#include <cstdio>

#include "cli/shell/terminal.h"

int main() {
  {
    cupool::cli::Progress progress;
    progress.show("run 1 of 2");
    progress.show("run 2 of 2, " + std::string(500, 'x'));
  }
  std::puts("done");
  std::fflush(stdout);
  cupool::cli::hint("next");
}
