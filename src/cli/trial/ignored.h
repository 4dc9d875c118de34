// SPDX-License-Identifier: Apache-2.0
// What `compare --ignore` leaves out of a program's output, and which expression would leave out
// the numbers that vary from run to run.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace cupool::cli {

/// Compiles the expressions. Throws UsageError for one that is not ECMAScript.
std::vector<std::regex> patterns_of(const std::vector<std::string>& texts);

/// `output` without the matches, line by line. Lines longer than kLongestMatchedLine stay as they
/// are.
std::string comparable(const std::string& output, const std::vector<std::regex>& ignored);

/// The standard library matches by recursion: a longer line could exhaust the stack.
inline constexpr std::size_t kLongestMatchedLine = 8192;

/// Bytes of outputs beyond which no expression is proposed.
inline constexpr std::size_t kLargestOutputs = std::size_t{8} << 20;

/// Expressions for --ignore that make the outputs of `without` equal: numbers that vary, with the
/// text around them. `with` only shows which characters such a number may have. Empty if the
/// outputs are equal, or if something else than numbers varies. Pure.
std::vector<std::string> proposed_ignores(const std::vector<std::string>& without,
                                          const std::vector<std::string>& with);

}  // namespace cupool::cli
