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

/// Why no page and no profile is written to a file of this name, or "": it is a program, or it ends
/// in .json and exists. `--html *.json` would take the first report for the page.
std::string overwrites_input(const std::string& name);

/// Writes the text to standard output ("" or "-") or to a file, whose name is expanded. Returns the
/// file, "" for standard output. Throws UsageError with the reason and a way out.
std::string write_text(const std::string& name, const std::string& text);

/// The same for a name that is taken as it is, and is always a file.
void write_file(const std::string& file, const std::string& text);

/// Throws what write_text would throw for want of a folder or of permission, before a long run.
/// Does not create the file.
void require_writable(const std::string& name);

/// "cupool: wrote page.html, 2 processes" on standard error; nothing for standard output.
void tell_written(const std::string& file, const std::string& what);

}  // namespace cupool::cli
