// A profile: a file of KEY=VALUE lines that stands in for environment variables.
// Written like a shell file, so that `source` and CUPOOL_PROFILE can share it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cupool::config {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

/// Reads a profile: one KEY=VALUE a line, `export ` before it allowed, one pair of quotes around
/// the value removed, lines that are empty or begin with '#' skipped; of unquoted values a part
/// that begins with " #" is a comment. A line that is none of this gives a warning with its number;
/// a file that cannot be read gives one, and nothing. Throws only std::bad_alloc.
KeyValues read_profile(const std::string& path, std::vector<std::string>* warnings);

}  // namespace cupool::config
