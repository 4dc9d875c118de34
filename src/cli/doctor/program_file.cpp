// SPDX-License-Identifier: Apache-2.0
// The kernel passes the rest of a `#!` line as one argument; `env -S` splits it.
#include "cli/doctor/program_file.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <sstream>

#include "cli/shell/input.h"
#include "cli/shell/shell_words.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr std::size_t kFirstLine = 256;  // the kernel's BINPRM_BUF_SIZE
constexpr std::size_t kMostScripts = 5;  // the kernel's limit; deeper nesting is ELOOP

std::string first_bytes_of(const std::string& path) {
  std::string bytes;
  std::string reason;
  read_start_of_file(path, kFirstLine, &bytes, &reason);
  return bytes;
}

std::string resolved(const std::string& path) {
  char buffer[PATH_MAX];
  return realpath(path.c_str(), buffer) != nullptr ? buffer : path;
}

// The program in the arguments of `env`, after options and assignments.
std::string program_of_env(const std::string& argument, bool* empties) {
  std::istringstream stream(argument);
  for (std::string word; stream >> word;) {
    if (word == "-i" || word == "-" || word == "--ignore-environment") *empties = true;
    if (word == "-u" || word == "-C") stream >> word;
    if (word[0] != '-' && word.find('=') == std::string::npos) return word;
  }
  return "";
}

}  // namespace

bool ProgramFile::is_python() const {
  return util::base_name(executable()).compare(0, 6, "python") == 0;
}

std::vector<std::string> interpreter_of(const std::string& first_bytes) {
  if (first_bytes.compare(0, 2, "#!") != 0) return {};
  const std::string line = first_bytes.substr(2, first_bytes.find('\n') - 2);
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  const std::size_t end = std::min(line.find_first_of(" \t", begin), line.size());
  std::vector<std::string> words = {line.substr(begin, end - begin)};
  const std::size_t argument = line.find_first_not_of(" \t", end);
  if (argument != std::string::npos) {
    words.push_back(line.substr(argument, line.find_last_not_of(" \t\r") + 1 - argument));
  }
  return words;
}

ProgramFile find_program_file(const std::string& name, const Environment& environment) {
  ProgramFile file;
  std::string next = name;
  while (file.chain.size() <= kMostScripts + 1) {
    const ProgramSearch search = find_program(next, environment);
    if (search.exit_code != 0) {
      file.problem = search.reason;
      if (file.script) {
        file.problem = "the first line of " + file.chain.back() +
                       " names an interpreter that cannot be started: " + search.reason;
      }
      if (file.chain.empty()) file.chain.push_back(next);
      return file;
    }
    file.chain.push_back(resolved(search.path));
    const std::string first = first_bytes_of(search.path);
    const std::vector<std::string> words = interpreter_of(first);
    if (words.empty()) return file;
    file.script = true;
    // The kernel takes it for a part of the interpreter's name or of its argument.
    if (first[std::min(first.find('\n'), first.size()) - 1] == '\r') {
      file.problem = "the first line of " + file.chain.back() +
                     " ends with a carriage return. The lines end as those of Windows: sed -i "
                     "'s/\\r$//' " +
                     shell_words({file.chain.back()});
      return file;
    }
    next = words[0];
    if (util::base_name(next) != "env" || words.size() < 2) continue;
    next = program_of_env(words[1], &file.empties_environment);
    if (next.empty()) next = words[0];
  }
  file.problem = name + ": too many nested script interpreters for the kernel";
  return file;
}

}  // namespace cupool::cli
