// SPDX-License-Identifier: Apache-2.0
// Reports in a few sentences, for a terminal.
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

/// The verdict, then the sentences of the story; with several reports a table of processes and the
/// outliers. Lines end in '\n'. Pure.
std::string story_text(const std::vector<Report>& reports);

/// What was never freed, by call site, of all processes together; "" without a list. Pure.
std::string leaks_text(const std::vector<Report>& reports);

/// A table with aligned columns: the first one left, the others right.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

/// Replaces control characters, which could move a terminal's cursor, by '?'.
std::string printable_text(const std::string& text);

}  // namespace cupool::cli
