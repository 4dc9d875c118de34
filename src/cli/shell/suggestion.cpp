// SPDX-License-Identifier: Apache-2.0
// Uses the distance of the library's parser, so both suggest the same name.
#include "cli/shell/suggestion.h"

#include <string_view>

#include "util/text.h"

namespace cupool::cli {

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  const std::string_view near =
      util::closest(word, std::vector<std::string_view>(names.begin(), names.end()));
  return near.empty() ? "" : ". Did you mean " + std::string(near) + "?";
}

}  // namespace cupool::cli
