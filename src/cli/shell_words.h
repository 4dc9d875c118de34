// Commands as a person would type them.
#pragma once

#include <string>
#include <vector>

namespace cupool::cli {

/// One word of a shell's command line, quoted if it has to be. Pure.
std::string shell_word(const std::string& text);
/// The words with blanks between.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace cupool::cli
