// Programs that the command starts: found as a shell finds them, with an environment of their own,
// with the signals that the command gets, and with what they used measured.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::cli {

/// The variables of a process to be started.
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

/// Where a program is, or why not.
struct ProgramSearch {
  std::string path;   ///< with a slash in it; "" if not found
  int exit_code = 0;  ///< 0, or the shell's code: 126 (not executable), 127 (not found)
  std::string reason;
};

/// Looks a program up as a shell does: a name with a slash is taken as it stands, any other is
/// looked for in PATH.
ProgramSearch find_program(const std::string& name, const Environment& environment);

/// How to start a program.
struct ChildStart {
  std::vector<std::string> argv;  ///< not empty; argv[0] is looked up by find_program
  Environment environment;
  int standard_output = -1;  ///< descriptor for the program's standard output; -1: this one's
  int standard_error = -1;   ///< the same of standard error
};

/// How it ended.
struct ChildEnd {
  int start_code = 0;  ///< not 0: it was not started, the shell's 126 or 127
  std::string reason;  ///< then: why, in words
  int exit_code = 0;   ///< valid if signal is 0
  int signal = 0;      ///< the signal that ended it
  std::uint64_t wall_ns = 0;
  rusage usage{};  ///< of it and the children that it waited for

  /// As a shell would say it: 128+n for a signal.
  int shell_code() const;
};

/// Becomes the program. Returns only if that is impossible: the shell's code, with the message
/// printed on standard error.
int become(ChildStart start);

/// Starts the program, hands on the signals that this process gets meanwhile (TERM, INT, HUP, QUIT,
/// USR1, USR2, ALRM, WINCH, PWR and the real-time ones; those that a terminal sends to the whole
/// foreground group have reached it already), and waits for its end. So Ctrl-C ends the program and
/// not the command: who runs several looks at `signal` before the next. Call from a process with
/// one thread.
ChildEnd run_child(const ChildStart& start);

/// A program's end with what it wrote.
struct CapturedEnd {
  ChildEnd end;
  std::string standard_output;
  std::string standard_error;
};

/// run_child with both streams kept in memory; the descriptors of `start` are not used.
CapturedEnd run_captured(ChildStart start);

/// Ends the command as the program ended: prints why it was not started, raises the signal that
/// ended it (without a second core file), or returns its exit code.
int hand_on(const ChildEnd& end);

}  // namespace cupool::cli
