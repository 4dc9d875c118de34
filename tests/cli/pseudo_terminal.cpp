// SPDX-License-Identifier: Apache-2.0
// forkpty and a poll loop; see pseudo_terminal.h.
#include "pseudo_terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

namespace cli {

namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// A terminal whose last user is gone answers EIO.
bool read_piece(int terminal, std::string* output) {
  char buffer[4096];
  const ssize_t got = read(terminal, buffer, sizeof buffer);
  for (ssize_t i = 0; i < got; ++i) {
    if (buffer[i] != '\r') *output += buffer[i];
  }
  return got > 0;
}

}  // namespace

TerminalRun run_at_terminal(
    const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
    const std::function<void(const std::string& output, int pid, int terminal)>& at_output) {
  std::vector<std::string> words = argv;
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const std::vector<char*> arguments = pointers(words);
  const std::vector<char*> entries = pointers(variables);
  TerminalRun run;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child < 0) throw std::runtime_error("forkpty failed");
  if (child == 0) {
    execve(arguments[0], arguments.data(), entries.data());
    _exit(120);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool late = false;
  for (;;) {
    pollfd polled{terminal, POLLIN, 0};
    poll(&polled, 1, 1000);
    late = std::chrono::steady_clock::now() > deadline;
    if (late) kill(-child, SIGKILL);
    if (polled.revents != 0 && !read_piece(terminal, &run.output)) break;
    if (polled.revents != 0 && at_output) at_output(run.output, child, terminal);
  }
  close(terminal);
  waitpid(child, &run.status, 0);
  if (late) throw std::runtime_error("the program took too long; it showed:\n" + run.output);
  return run;
}

}  // namespace cli
