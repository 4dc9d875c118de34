// The short story of reports, for a terminal.
#pragma once

#include <string>
#include <vector>

#include "cli/report_model.h"

namespace cupool::cli {

/// The verdict first, then a sentence for each figure that matters; with several reports the table
/// of processes and the outliers. Lines end in '\n'. Pure.
std::string story_text(const std::vector<Report>& reports);

/// Columns that line up: the first left, the others right aligned.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

/// `text` with what would move a terminal's cursor replaced by '?'.
std::string printable_text(const std::string& text);

}  // namespace cupool::cli
