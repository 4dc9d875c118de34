// fork and execve, since only they restore every disposition of a signal for the program; a pipe
// that closes at exec brings back why a start failed.
#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "cli/command.h"
#include "util/clock.h"

namespace cupool::cli {

namespace {

constexpr int kSignalBase = 128;  // POSIX shells: the code of a death by signal n is 128 + n

std::vector<char*> pointers_of(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  // execve takes char* for historical reasons and writes to none of them.
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// 0 if the file can be executed, else errno.
int executable_error(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

int code_of(int error) {
  return error == ENOENT || error == ENOTDIR ? exit_not_found : exit_not_executable;
}

ProgramSearch failed_search(const std::string& name, int error, bool in_path) {
  const std::string why = error == ENOENT && in_path ? "not found in PATH" : std::strerror(error);
  return ProgramSearch{"", code_of(error), name + ": " + why};
}

// execve; a text file without "#!" goes to the shell, as execvp does it.
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

void forward(pid_t child, const siginfo_t& info) {
  // The kernel sends a terminal's signals to the whole foreground group, the program among them.
  if (info.si_code == SI_KERNEL) return;
  if (info.si_code == SI_QUEUE) {
    sigqueue(child, info.si_signo, info.si_value);
  } else {
    kill(child, info.si_signo);
  }
}

// The state of signals while a program runs, and how it was before.
class SignalWatch {
 public:
  SignalWatch() : watched_(forwarded_signals()) {
    sigaddset(&watched_, SIGCHLD);
    // With SIGCHLD ignored, as some parents leave it, the kernel would throw the status away.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &standard, &child_action_);
    sigprocmask(SIG_BLOCK, &watched_, &mask_);
  }
  ~SignalWatch() { restore(); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Also called in the child. Async-signal-safe.
  void restore() const {
    sigaction(SIGCHLD, &child_action_, nullptr);
    sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }

  // Waits for the child's end, handing on every other signal.
  int wait(pid_t child, rusage* usage) const {
    for (;;) {
      int status = 0;
      const pid_t ended = wait4(child, &status, WNOHANG, usage);
      if (ended == child) return status;
      if (ended < 0 && errno != EINTR) {
        throw std::system_error(errno, std::generic_category(), "wait4");
      }
      siginfo_t info{};
      if (sigwaitinfo(&watched_, &info) > 0 && info.si_signo != SIGCHLD) forward(child, info);
    }
  }

 private:
  sigset_t watched_;
  sigset_t mask_{};
  struct sigaction child_action_ {};
};

bool redirect(int from, int to) {
  return from < 0 || dup2(from, to) >= 0;
}

// What the child does between fork and exec; its errno goes through the pipe.
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

// 0, or the errno that the child met before exec. Closes the pipe.
int read_start_error(int pipe_end) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(pipe_end, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  close(pipe_end);
  return got == static_cast<ssize_t>(sizeof error) ? error : 0;
}

// A file without a name: unlike a pipe it is never full.
struct MemoryFile {
  int descriptor = memfd_create("cupool", MFD_CLOEXEC);

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
  int worst = ENOENT;  // a file that is there but cannot be executed says more than one that is not
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
    std::fprintf(stderr, "cupool: %s\n", program.reason.c_str());
    return program.exit_code;
  }
  std::fflush(nullptr);
  execute(program.path, start.argv, start.environment.pointers().data());
  const int error = errno;
  std::fprintf(stderr, "cupool: %s: %s\n", start.argv[0].c_str(), std::strerror(error));
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
  const SignalWatch watch;
  const std::uint64_t began = util::now_ns();
  const pid_t child = fork();
  if (child == 0) start_in_child(start, program.path, watch, variables.data(), ends[1]);
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  const int error = read_start_error(ends[0]);
  finish(&end, watch.wait(child, &end.usage));
  end.wall_ns = util::now_ns() - began;
  if (error != 0) {
    end.start_code = code_of(error);
    end.reason = start.argv[0] + ": " + std::strerror(error);
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
  if (end.start_code != 0) std::fprintf(stderr, "cupool: %s\n", end.reason.c_str());
  if (end.signal != 0) {
    // The program has left the core file that matters.
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
