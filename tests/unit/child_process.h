// SPDX-License-Identifier: Apache-2.0
// Parts of a test in a process of their own: for effects that a process has once, or for good.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace cupool::test {

/// The exit code of `child`; -1: a signal ended it.
inline int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Runs `body` in a child and returns its exit code: 0 unless `body` ends it otherwise. One that
/// hangs is ended by a signal.
inline int exit_code_of(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    body();
    ::_exit(0);
  }
  return exit_code_of(child);
}

}  // namespace cupool::test
