// SPDX-License-Identifier: Apache-2.0
// On some file systems every file may be executed: the name and the first byte decide there.
#include "cli/shell/program_word.h"

#include <filesystem>
#include <string_view>

#include "cli/shell/child.h"
#include "cli/shell/input.h"

namespace cupool::cli {

bool is_program_word(const std::string& word) {
  if (word.empty() || word[0] == '-') return false;
  if (std::filesystem::path(word).extension() == ".json") return false;
  std::error_code ignored;
  // A name without a slash may be a report here, and a program elsewhere.
  const bool is_here = std::filesystem::exists(word, ignored);
  const std::string path = is_here && word.find('/') == std::string::npos ? "./" + word : word;
  if (find_program(path, Environment::inherited()).exit_code != 0) return false;
  if (!is_here) return true;
  std::string start;
  std::string reason;
  return !read_start_of_file(path, 1, &start, &reason) || start != "{";
}

bool is_program_file(const std::string& name) {
  const std::string path = name.find('/') == std::string::npos ? "./" + name : name;
  if (find_program(path, Environment::inherited()).exit_code != 0) return false;
  std::string start;
  std::string reason;
  if (!read_start_of_file(path, 4, &start, &reason)) return false;
  constexpr std::string_view kElf = "\x7f\x45LF";
  return start == kElf || start.compare(0, 2, "#!") == 0;
}

}  // namespace cupool::cli
