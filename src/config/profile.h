// SPDX-License-Identifier: Apache-2.0
// A profile: a file of KEY=VALUE lines in place of environment variables. It has the syntax of a
// shell file, so that `source` and CUPOOL_PROFILE can share it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cupool::config {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

/// Reads a profile: one KEY=VALUE per line, optionally after `export `. One pair of quotes around
/// the value is removed; in an unquoted value, " #" begins a comment. Empty lines, lines that begin
/// with '#', and a leading byte order mark are skipped. Any other line gives a warning with its
/// number. An unreadable file gives one warning and no pairs. Throws only std::bad_alloc.
KeyValues read_profile(const std::string& path, std::vector<std::string>* warnings);

}  // namespace cupool::config
