// SPDX-License-Identifier: Apache-2.0
// The end of a child process, as one number, and none of the address sanitizer's search for leaks
// in a forked child: it takes locks of the heap that a thread of the parent may have held at the
// fork, and then waits for ever. The parent is searched.
#pragma once

#include <pthread.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace probe {

// The child's exit code, or 1000 and the signal that ended it; -1: no such child.
inline int wait_for(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

#if defined(__SANITIZE_ADDRESS__)
inline const pid_t parent = getpid();
// In a pid namespace of its own, a child may have its parent's number.
inline bool is_forked = false;
inline const int noted = pthread_atfork(
    nullptr, nullptr, +[] { is_forked = true; });
#endif

}  // namespace probe

#if defined(__SANITIZE_ADDRESS__)
// Visible: the sanitizer's library looks it up.
extern "C" __attribute__((weak, used, visibility("default"))) int __lsan_is_turned_off() {
  return probe::is_forked || getpid() != probe::parent ? 1 : 0;
}
#endif
