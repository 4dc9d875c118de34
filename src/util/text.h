// Small text functions: numbers for people, strict number parsing, distance between names.
// Pure functions, no locale: the same figures on every machine.
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

/// `part` of `whole` as "37.5 %"; "-" if whole is 0. Only nothing is "0.0 %" and only all of it is
/// "100.0 %": between them it is "<0.1 %" and ">99.9 %" at the ends.
std::string format_percent(std::uint64_t part, std::uint64_t whole);

/// Wall time (ns since 1970) as local "2025-11-20 15:52:07".
std::string format_wall_time(std::uint64_t wall_ns);

/// `text` without blanks, tabs and line ends at both ends.
std::string_view trim(std::string_view text);

/// Whether `text` begins with `prefix`.
inline bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

/// What follows the last '/' of `path`, or all of it; "" if it ends in '/'.
inline std::string base_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

/// ASCII lower case.
std::string to_lower(std::string_view text);

/// The parts of `text` between `separator`s, each trimmed; empty parts are kept.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Reads a decimal number: digits only, the whole text, no sign, no blanks.
/// False (and `out` untouched) for anything else and for numbers beyond 64 bits.
bool parse_uint64(std::string_view text, std::uint64_t* out);

/// Optimal string alignment distance: insertions, deletions, replacements, swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word` if it is near enough to be a misspelling (distance at most a
/// third of the length of the longer), else an empty view. The earlier of equals.
std::string_view closest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace cupool::util
