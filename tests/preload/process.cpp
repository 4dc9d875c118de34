// SPDX-License-Identifier: Apache-2.0
// posix_spawn, two pipes and a poll loop; see process.h.
#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace preload {

namespace {

using Clock = std::chrono::steady_clock;

// The ends of a pipe, closed when the test leaves, however it leaves.
struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "pipe");
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    close(read_end);
    close_write_end();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void close_write_end() {
    if (write_end >= 0) close(write_end);
    write_end = -1;
  }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

pid_t start(const Command& command, const Pipe& out, const Pipe& err) {
  std::vector<std::string> arguments = command.argv;
  std::vector<std::string> variables;
  variables.reserve(command.environment.size());
  for (const auto& entry : command.environment) {
    variables.push_back(entry.first + "=" + entry.second);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // so that a kill gets children too
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = -1;
  const int error = posix_spawnp(&child, arguments.at(0).c_str(), &actions, &attributes,
                                 pointers(arguments).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), "cannot start " + arguments.at(0));
  }
  return child;
}

// Reads what is there; false at the end of the stream.
bool drain(int descriptor, std::string* text) {
  char buffer[65536];
  const ssize_t got = read(descriptor, buffer, sizeof(buffer));
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  text->append(buffer, static_cast<size_t>(got));
  return got > 0;
}

// Collects both streams until they end or the deadline passes; false if it passed.
bool collect(const Pipe& out, const Pipe& err, Clock::time_point deadline, ProcessResult* result) {
  pollfd polled[2] = {{out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}};
  std::string* const texts[2] = {&result->out, &result->err};
  int open_streams = 2;
  while (open_streams > 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (poll(polled, 2, static_cast<int>(left)) < 0 && errno != EINTR) return false;
    for (int i = 0; i < 2; ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      if (drain(polled[i].fd, texts[i])) continue;
      polled[i].fd = -1;  // poll passes over it from now on
      --open_streams;
    }
  }
  return true;
}

// Waits for the child; a process that closed its streams may still be running.
bool reap(pid_t child, Clock::time_point deadline, int* status) {
  for (;;) {
    const pid_t got = waitpid(child, status, WNOHANG);
    if (got == child) return true;
    if (got < 0 && errno != EINTR) return false;
    if (Clock::now() > deadline) return false;
    usleep(200);
  }
}

}  // namespace

ProcessResult run(const Command& command) {
  ProcessResult result;
  Pipe out;
  Pipe err;
  const Clock::time_point began = Clock::now();
  const Clock::time_point deadline = began + command.limit;
  const pid_t child = start(command, out, err);
  result.pid = child;
  out.close_write_end();
  err.close_write_end();
  int status = 0;
  if (!collect(out, err, deadline, &result) || !reap(child, deadline, &status)) {
    result.timed_out = true;
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

std::string ProcessResult::describe() const {
  std::string text = timed_out     ? "timed out (a hang)"
                     : signal != 0 ? "signal " + std::to_string(signal)
                                   : "exit code " + std::to_string(exit_code);
  text += " after " + std::to_string(seconds) + " s\n--- stdout\n" + out + "--- stderr\n" + err;
  return text;
}

}  // namespace preload
