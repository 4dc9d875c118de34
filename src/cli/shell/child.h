// SPDX-License-Identifier: Apache-2.0
// Child processes of the command: PATH look-up, environment, forwarding of signals, exit status,
// time and resources.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cupool::cli {

/// Environment variables of a child process.
class Environment {
 public:
  /// A copy of this process's own.
  static Environment inherited();

  /// The value, or null. Of equal names the first counts, as for getenv.
  const char* get(const std::string& name) const;
  void set(const std::string& name, const std::string& value);
  void unset(const std::string& name);
  /// As execve wants them; valid until the next change.
  std::vector<char*> pointers();
  /// As config::parse wants them.
  std::vector<const char*> pointers() const;

 private:
  std::vector<std::string> entries_;  // NAME=VALUE
};

/// The result of a PATH look-up.
struct ProgramSearch {
  std::string path;   ///< contains a slash; "" if not found
  int exit_code = 0;  ///< 0, or the shell's code: 126 (not executable), 127 (not found)
  std::string reason;
};

/// Finds a program as a shell does: a name with a slash is a path, any other is looked up in PATH.
ProgramSearch find_program(const std::string& name, const Environment& environment);

/// How to start a program.
struct ChildStart {
  std::vector<std::string> argv;  ///< not empty; argv[0] is looked up by find_program
  Environment environment;
  int standard_output = -1;  ///< descriptor for the program's standard output; -1: this one's
  int standard_error = -1;   ///< the same of standard error
  std::function<void()> each_second;  ///< called meanwhile, if it is set
  bool sees_orphans = false;          ///< for ChildEnd::leaves_processes
};

/// How a child process ended.
struct ChildEnd {
  int start_code = 0;             ///< 126 or 127, a shell's codes, if it was not started; else 0
  std::string reason;             ///< why it was not started
  int exit_code = 0;              ///< valid if signal is 0
  int signal = 0;                 ///< the signal that ended it
  bool leaves_processes = false;  ///< processes that it started still run
  std::uint64_t wall_ns = 0;
  rusage usage{};  ///< of the child and of the children that it waited for

  /// The exit status as a shell reports it: 128+n for signal n.
  int shell_code() const;
};

/// Replaces this process by the program (execve). Returns only on failure: prints the reason on
/// standard error and returns 126 or 127.
int become(ChildStart start);

/// Starts the program and waits for its end. Meanwhile forwards the signals TERM, INT, HUP, QUIT,
/// USR1, USR2, ALRM, WINCH, PWR and the real-time ones. Signals sent to the whole process group (by
/// a terminal or kill(2)) are not forwarded: the program has them already. Ctrl-C therefore ends
/// the program and not the command; a caller that runs several programs checks `signal` before the
/// next. The calling process must have one thread.
ChildEnd run_child(const ChildStart& start);

/// A child's end with its output.
struct CapturedEnd {
  ChildEnd end;
  std::string standard_output;
  std::string standard_error;
};

/// run_child with both output streams kept in memory. Ignores the descriptors of `start`.
CapturedEnd run_captured(ChildStart start);

/// Ends the command like the program: raises the signal that ended it (without a second core file),
/// or returns its exit code. Prints why a program was not started.
int hand_on(const ChildEnd& end);

}  // namespace cupool::cli
