// SPDX-License-Identifier: Apache-2.0
// Small text functions: numbers for people, strict number parsing, distance between names.
// Pure functions without locale: the same output on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cupool::util {

/// Bytes for people, binary units, three significant decimals at most: "0 B", "512 B", "1.50 GiB".
std::string format_bytes(std::uint64_t bytes);

/// A duration for people: "850 ns", "1.50 us", "12.3 ms", "4.20 s".
std::string format_duration_ns(std::uint64_t duration_ns);

/// A count with thousands separated by commas: "1,234,567".
std::string format_count(std::uint64_t count);

/// `part` of `whole` as "37.5 %"; "-" if whole is 0. "0.0 %" means exactly none and "100.0 %"
/// exactly all; values next to them are "<0.1 %" and ">99.9 %".
std::string format_percent(std::uint64_t part, std::uint64_t whole);

/// Wall time (ns since 1970) as local "2025-11-20 15:52:07".
std::string format_wall_time(std::uint64_t wall_ns);

/// `text` without leading and trailing blanks, tabs and line ends.
std::string_view trim(std::string_view text);

/// Whether `text` begins with `prefix`.
inline bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

/// The part of `path` after the last '/', or all of it; "" if it ends in '/'.
inline std::string base_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

/// `text` for a terminal, a log or a label: control characters (C0, C1, delete) and invalid UTF-8
/// become question marks. Line ends are kept on request.
std::string printable(std::string_view text, bool keep_line_ends = false);

/// ASCII lower case.
std::string to_lower(std::string_view text);

/// The parts of `text` between `separator`s, each trimmed; empty parts are kept.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Parses a decimal number: the whole text, digits only, no sign, no blanks. False, with `out`
/// unchanged, for anything else and for numbers beyond 64 bits.
bool parse_uint64(std::string_view text, std::uint64_t* out);

/// Optimal string alignment distance: insertions, deletions, replacements, swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word` if it may be a misspelling (distance at most a third of the
/// longer length), else an empty view. Of equally near ones, the first.
std::string_view closest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace cupool::util
