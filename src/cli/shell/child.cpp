// SPDX-License-Identifier: Apache-2.0
// fork and execve instead of posix_spawn, which cannot restore every signal disposition. A pipe
// that closes at exec reports a failed start.
#include "cli/shell/child.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "cli/shell/exit_code.h"
#include "cli/shell/group_witness.h"
#include "util/clock.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr int kSignalBase = 128;  // POSIX shells report a death by signal n as 128 + n

constexpr std::uint64_t kSecondNs = 1'000'000'000;

std::vector<char*> pointers_of(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  // execve takes char* for historical reasons and writes to none of them.
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Instead of EACCES, which execve(2) gives for pipes and devices and for much else.
constexpr int kNotRegular = -1;

// 0 if the file can be executed, else errno or kNotRegular.
int executable_error(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return kNotRegular;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

// Why execve failed for a file that is there.
std::string start_error(const std::string& name, int error) {
  if (error != ENOENT) return name + ": " + std::strerror(error);
  return name +
         ": the interpreter (first line) or the loader that it names is not there. cupool doctor "
         "names it";
}

int code_of(int error) {
  return error == ENOENT || error == ENOTDIR ? exit_not_found : exit_not_executable;
}

ProgramSearch failed_search(const std::string& name, int error, bool in_path) {
  std::string why = error == ENOENT && in_path ? "not found in PATH" : std::strerror(error);
  if (error == kNotRegular) why = "not a regular file";
  // What to do about it.
  if (error == ENOENT && in_path && executable_error("./" + name) == 0) {
    why += ". To start the one here: ./" + name;
  }
  if (error == EACCES) why += ". To make it a program: chmod +x " + name;
  if (error == EISDIR) why += ". Name a program in it";
  return ProgramSearch{"", code_of(error), name + ": " + why};
}

// execve, and like execvp the shell for a text file without "#!".
void execute(const std::string& path, const std::vector<std::string>& argv,
             char* const* variables) {
  execve(path.c_str(), pointers_of(argv).data(), variables);
  if (errno != ENOEXEC) return;
  std::vector<std::string> words = {"/bin/sh", path};
  words.insert(words.end(), argv.begin() + 1, argv.end());
  execve(words[0].c_str(), pointers_of(words).data(), variables);
  errno = ENOEXEC;
}

sigset_t forwarded_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal :
       {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGPWR}) {
    sigaddset(&set, signal);
  }
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) sigaddset(&set, signal);
  return set;
}

// Signal handling while a program runs; restores the previous state.
class SignalWatch {
 public:
  SignalWatch() : watched_(forwarded_signals()) {
    sigaddset(&watched_, SIGCHLD);
    // Some parents leave SIGCHLD ignored; the kernel would then discard the exit status.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &standard, &child_action_);
    sigprocmask(SIG_BLOCK, &watched_, &mask_);
    arrivals_ = signalfd(-1, &watched_, SFD_CLOEXEC | SFD_NONBLOCK);
    if (arrivals_ < 0) {
      const int error = errno;
      restore();
      throw std::system_error(error, std::generic_category(), "signalfd");
    }
    witness_.emplace(forwarded_signals());
  }
  ~SignalWatch() {
    witness_.reset();
    close(arrivals_);
    restore();
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Called in the child too. Async-signal-safe.
  void restore() const {
    sigaction(SIGCHLD, &child_action_, nullptr);
    sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }

  // Waits for the child's end and forwards every signal that the child has not got itself.
  int wait(pid_t child, rusage* usage, const std::function<void()>& each_second) {
    std::uint64_t next = util::now_ns() + kSecondNs;
    for (;;) {
      int status = 0;
      const pid_t ended = wait4(child, &status, WNOHANG, usage);
      if (ended == child) return status;
      if (ended < 0 && errno != EINTR) {
        throw std::system_error(errno, std::generic_category(), "wait4");
      }
      reap_orphans(child);
      pollfd polled[] = {{arrivals_, POLLIN, 0}, {witness_->descriptor(), POLLIN, 0}};
      const int wait_ms = held_.wait_ms(util::now_ns());
      poll(polled, 2, each_second && (wait_ms < 0 || wait_ms > 1000) ? 1000 : wait_ms);
      take_arrivals(child);
      take_sightings(child);
      for (const int signal : held_.due(util::now_ns())) kill(child, signal);
      if (!each_second || util::now_ns() < next) continue;
      each_second();
      next = util::now_ns() + kSecondNs;
    }
  }

 private:
  // Those of the program are this process's (PR_SET_CHILD_SUBREAPER), and one that has ended would
  // seem to run until it is waited for: the program may look.
  void reap_orphans(pid_t child) const {
    siginfo_t ended{};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0 &&
           ended.si_pid != child && ended.si_pid != witness_->process()) {
      waitpid(ended.si_pid, nullptr, 0);
      ended = {};
    }
  }

  void take_arrivals(pid_t child) {
    signalfd_siginfo info{};
    while (read(arrivals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const auto signal = static_cast<int>(info.ssi_signo);
      // A terminal's signals go to the whole foreground group, the program included.
      if (signal == SIGCHLD || info.ssi_code == SI_KERNEL) continue;
      if (info.ssi_code == SI_QUEUE) {  // always for one process
        sigval value{};
        value.sival_ptr = reinterpret_cast<void*>(info.ssi_ptr);
        sigqueue(child, signal, value);
      } else if (info.ssi_code == SI_USER && witness_->descriptor() >= 0) {
        held_.arrived(signal, static_cast<pid_t>(info.ssi_pid), util::now_ns());
      } else {
        kill(child, signal);
      }
    }
  }

  void take_sightings(pid_t child) {
    for (const GroupWitness::Sighting& sighting : witness_->read()) {
      // A program that has left the group did not get it.
      if (getpgid(child) != getpgrp()) continue;
      held_.seen_by_group(sighting.signal, sighting.sender, util::now_ns());
    }
  }

  int arrivals_ = -1;
  std::optional<GroupWitness> witness_;
  HeldSignals held_;
  sigset_t watched_;
  sigset_t mask_{};
  struct sigaction child_action_ {};
};

// `from` is `to` where that was closed: it stays open beyond exec then.
bool redirect(int from, int to) {
  return from < 0 || (from == to ? fcntl(to, F_SETFD, 0) >= 0 : dup2(from, to) >= 0);
}

// The child between fork and exec; sends its errno through the pipe.
[[noreturn]] void start_in_child(const ChildStart& start, const std::string& path,
                                 const SignalWatch& watch, char* const* variables, int error_pipe) {
  if (redirect(start.standard_output, STDOUT_FILENO) &&
      redirect(start.standard_error, STDERR_FILENO)) {
    watch.restore();
    execute(path, start.argv, variables);
  }
  const int error = errno;
  const ssize_t written = write(error_pipe, &error, sizeof error);
  _exit(written == static_cast<ssize_t>(sizeof error) ? code_of(error) : exit_not_executable);
}

// The child's errno before exec, or 0. Closes the pipe.
int read_start_error(int pipe_end) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(pipe_end, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  close(pipe_end);
  return got == static_cast<ssize_t>(sizeof error) ? error : 0;
}

// An anonymous file: unlike a pipe it never blocks its writer. By system call: glibc has
// memfd_create since 2.27 only.
struct MemoryFile {
  int descriptor = static_cast<int>(syscall(SYS_memfd_create, "cupool", MFD_CLOEXEC));

  MemoryFile() {
    if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  ~MemoryFile() { close(descriptor); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string content() const {
    std::string text;
    char buffer[65536];
    for (;;) {
      const ssize_t got = pread(descriptor, buffer, sizeof buffer, static_cast<off_t>(text.size()));
      if (got <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(got));
    }
  }
};

// Whether orphans of the program, which are this process's since PR_SET_CHILD_SUBREAPER, still run.
bool has_orphans() {
  pid_t ended = 0;
  do {
    ended = waitpid(-1, nullptr, WNOHANG);
  } while (ended > 0);
  return ended == 0;
}

void finish(ChildEnd* end, int status) {
  if (WIFSIGNALED(status)) end->signal = WTERMSIG(status);
  if (WIFEXITED(status)) end->exit_code = WEXITSTATUS(status);
}

}  // namespace

Environment Environment::inherited() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.entries_.emplace_back(*entry);
  }
  return environment;
}

const char* Environment::get(const std::string& name) const {
  for (const std::string& entry : entries_) {
    if (entry.size() > name.size() && entry[name.size()] == '=' &&
        entry.compare(0, name.size(), name) == 0) {
      return entry.c_str() + name.size() + 1;
    }
  }
  return nullptr;
}

void Environment::set(const std::string& name, const std::string& value) {
  unset(name);
  entries_.push_back(name + "=" + value);
}

void Environment::unset(const std::string& name) {
  const std::string prefix = name + "=";
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool same = entry->compare(0, prefix.size(), prefix) == 0;
    entry = same ? entries_.erase(entry) : entry + 1;
  }
}

std::vector<char*> Environment::pointers() {
  return pointers_of(entries_);
}

std::vector<const char*> Environment::pointers() const {
  const std::vector<char*> pointers = pointers_of(entries_);
  return {pointers.begin(), pointers.end()};
}

int ChildEnd::shell_code() const {
  if (start_code != 0) return start_code;
  return signal != 0 ? kSignalBase + signal : exit_code;
}

ProgramSearch find_program(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos || name.empty()) {
    const int error = executable_error(name);
    return error == 0 ? ProgramSearch{name, 0, ""} : failed_search(name, error, false);
  }
  const char* const set = environment.get("PATH");
  const std::string folders = set != nullptr ? set : "/usr/local/bin:/usr/bin:/bin";
  int worst = ENOENT;  // a file without execute permission tells more than a missing one
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    std::string path = end == begin ? "." : folders.substr(begin, end - begin);
    path.append("/").append(name);
    const int error = executable_error(path);
    if (error == 0) return ProgramSearch{path, 0, ""};
    if (code_of(error) == exit_not_executable) worst = error;
    begin = end + 1;
  }
  return failed_search(name, worst, true);
}

int become(ChildStart start) {
  const ProgramSearch program = find_program(start.argv.at(0), start.environment);
  if (program.exit_code != 0) {
    std::fprintf(stderr, "cupool: %s\n", util::printable(program.reason).c_str());
    return program.exit_code;
  }
  std::fflush(nullptr);
  execute(program.path, start.argv, start.environment.pointers().data());
  const int error = errno;
  std::fprintf(stderr, "cupool: %s\n", util::printable(start_error(start.argv[0], error)).c_str());
  return code_of(error);
}

ChildEnd run_child(const ChildStart& start) {
  ChildEnd end;
  const ProgramSearch program = find_program(start.argv.at(0), start.environment);
  if (program.exit_code != 0) {
    end.start_code = program.exit_code;
    end.reason = program.reason;
    return end;
  }
  Environment environment = start.environment;
  const std::vector<char*> variables = environment.pointers();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  std::fflush(nullptr);
  if (start.sees_orphans) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  std::optional<SignalWatch> watch(std::in_place);
  const std::uint64_t began = util::now_ns();
  const pid_t child = fork();
  if (child == 0) start_in_child(start, program.path, *watch, variables.data(), ends[1]);
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  const int error = read_start_error(ends[0]);
  finish(&end, watch->wait(child, &end.usage, start.each_second));
  end.wall_ns = util::now_ns() - began;
  watch.reset();  // with a process of its own
  if (start.sees_orphans) end.leaves_processes = has_orphans();
  if (error != 0) {
    end.start_code = code_of(error);
    end.reason = start_error(start.argv[0], error);
  }
  return end;
}

CapturedEnd run_captured(ChildStart start) {
  const MemoryFile output;
  const MemoryFile error;
  start.standard_output = output.descriptor;
  start.standard_error = error.descriptor;
  CapturedEnd captured;
  captured.end = run_child(start);
  captured.standard_output = output.content();
  captured.standard_error = error.content();
  return captured;
}

int hand_on(const ChildEnd& end) {
  if (end.start_code != 0)
    std::fprintf(stderr, "cupool: %s\n", util::printable(end.reason).c_str());
  if (end.signal != 0) {
    // The program's core file is the useful one.
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    std::fflush(nullptr);
    signal(end.signal, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, end.signal);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    raise(end.signal);
  }
  return end.shell_code();
}

}  // namespace cupool::cli
