// SPDX-License-Identifier: Apache-2.0
// Text for standard output or for a file that the user names.
#pragma once

#include <string>

namespace cupool::cli {

/// Writes the text to standard output ("" or "-") or to a file. On failure prints the reason on
/// standard error and returns false.
bool write_text(const std::string& file, const std::string& text);

}  // namespace cupool::cli
