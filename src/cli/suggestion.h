// "Did you mean ...?" for a word that is nearly one that is known.
#pragma once

#include <string>
#include <vector>

namespace cupool::cli {

/// ". Did you mean NAME?" for the nearest of `names`, or nothing if none is near. Pure.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);

}  // namespace cupool::cli
