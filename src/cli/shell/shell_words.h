// SPDX-License-Identifier: Apache-2.0
// Quoting for command lines that the user can paste into a shell.
#pragma once

#include <string>
#include <vector>

namespace cupool::cli {

/// One word of a shell's command line, quoted where necessary. Pure.
std::string shell_word(const std::string& text);
/// One word for fish, always quoted. Pure.
std::string fish_word(const std::string& text);
/// `text` with `prefix` before each character of `special`. Pure.
std::string escaped(const std::string& text, const std::string& special, const std::string& prefix);
/// The quoted words, separated by blanks.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace cupool::cli
