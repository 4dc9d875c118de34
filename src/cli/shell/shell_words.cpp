// SPDX-License-Identifier: Apache-2.0
// Single quotes: between them only the quote itself is special.
#include "cli/shell/shell_words.h"

namespace cupool::cli {

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// Between single quotes, fish reads \' and \\ only.
std::string fish_word(const std::string& text) {
  return "'" + escaped(text, "'\\", "\\") + "'";
}

std::string escaped(const std::string& text, const std::string& special,
                    const std::string& prefix) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string::npos) result += prefix;
    result += c;
  }
  return result;
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

}  // namespace cupool::cli
