// SPDX-License-Identifier: Apache-2.0
// The end of a child process, as one number.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

namespace probe {

// The child's exit code, or 1000 and the signal that ended it; -1: no such child.
inline int wait_for(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace probe
