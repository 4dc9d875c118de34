// SPDX-License-Identifier: Apache-2.0
// Text for standard output or for a file that the user names.
#pragma once

#include <string>

namespace cupool::cli {

/// Warns on standard error of % letters in a file's name that mean nothing.
void warn_of_letters(const std::string& name);

/// Expands the % letters of a file's name as the library does (util/path_pattern.h), after
/// warn_of_letters().
std::string expanded_name(const std::string& name);

/// Writes the text to standard output ("" or "-") or to a file,
/// whose name is expanded. On failure prints the reason on
/// standard error and returns false.
bool write_text(const std::string& name, const std::string& text);

}  // namespace cupool::cli
