// SPDX-License-Identifier: Apache-2.0
// Where both reports and a program may stand: which of the two is a word?
#pragma once

#include <string>

namespace cupool::cli {

/// Whether `word` names a program: an executable file, here or in PATH, that is not a report. A
/// directory, a name that ends in .json and a file that begins as JSON are reports.
bool is_program_word(const std::string& word);

/// Whether the file `name` is a program that writing to it would destroy: it may be executed, and
/// begins as a program or as a script.
bool is_program_file(const std::string& name);

}  // namespace cupool::cli
