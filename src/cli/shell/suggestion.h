// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?" for a misspelt word.
#pragma once

#include <string>
#include <vector>

namespace cupool::cli {

/// ". Did you mean NAME?" with the nearest of `names`, or "" if none is near. Pure.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);

}  // namespace cupool::cli
