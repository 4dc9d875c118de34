// SPDX-License-Identifier: Apache-2.0
// File names that differ by process: %p, %h, %r, %j, %n, %t. Many ranks start with the same
// environment, and would otherwise overwrite each other's files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cupool::util {

/// The letters for messages.
inline constexpr const char* kPatternLetters =
    "%p (process), %h (host), %r (rank), %j (job), %n (node), %t (time), %% (a percent sign)";

/// What the letters of a pattern stand for.
struct PatternValues {
  std::string process;
  std::string host;
  std::string rank;  ///< as empty: 0
  std::string job;   ///< as empty: 0
  std::string node;
  std::uint64_t wall_ns = 0;
};

/// The values of this process (util/launcher.h). Throws only std::bad_alloc, as do the others.
PatternValues pattern_values(std::uint64_t wall_ns);

/// Expands %p (process id), %h (host name), %r (rank, "0" if there is no launcher), %j (job, "0"
/// outside a job), %n (node), %t (`wall_ns`, since 1970, as local time YYYYmmddTHHMMSS) and %% (a
/// percent sign). Any other %x is unchanged. A slash in a value becomes '_'.
std::string expand_path_pattern(std::string_view pattern, const PatternValues& values);

/// The same with the values of this process.
std::string expand_path_pattern(std::string_view pattern, std::uint64_t wall_ns);

/// The letters of a pattern that mean nothing, such as "%z, %q"; empty if there is none.
std::string unknown_letters(std::string_view pattern);

/// A file that this process writes alone. As expand_path_pattern(), but ranks other than 0 add
/// theirs to a name that does not tell ranks apart: run.rank3.json for run.json. Then `*added` is
/// true. Terminals, pipes and devices keep their names.
std::string own_path(std::string_view pattern, std::uint64_t wall_ns, bool* added);

/// Whether this process warns that ranks add to a name: one of the ranks that do.
bool warns_of_added_rank();

/// The pattern, made absolute with the current working directory. An empty one is unchanged, and
/// any pattern if the directory is unknown.
std::string absolute_pattern(std::string_view pattern);

}  // namespace cupool::util
