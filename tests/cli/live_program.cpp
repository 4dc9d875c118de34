// SPDX-License-Identifier: Apache-2.0
// See live_program.h.
#include "live_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>
#include <stdexcept>
#include <vector>

namespace cli {

LiveProgram::LiveProgram(const std::string& words, const preload::Environment& environment) {
  std::vector<std::string> texts;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) texts.push_back(word);
  texts[0] = preload::probe_path(texts[0]);
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  std::vector<char*> entries;
  for (std::string& variable : variables) entries.push_back(variable.data());
  entries.push_back(nullptr);
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipe");
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in[0], 0);
  posix_spawn_file_actions_adddup2(&files, out[1], 1);
  const int failed =
      posix_spawn(&pid_, arguments[0], &files, nullptr, arguments.data(), entries.data());
  posix_spawn_file_actions_destroy(&files);
  close(in[0]);
  close(out[1]);
  input_ = in[1];
  if (failed != 0) throw std::runtime_error("cannot start " + texts[0]);
  for (char byte = 0; read(out[0], &byte, 1) == 1 && byte != '\n';) first_line_ += byte;
  close(out[0]);
}

LiveProgram::~LiveProgram() {
  end();
}

void LiveProgram::send(const std::string& text) const {
  if (write(input_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("the program reads no input");
  }
}

void LiveProgram::end() {
  if (pid_ < 0) return;
  close(input_);
  kill(pid_, SIGCONT);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace cli
