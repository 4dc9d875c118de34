// Files that commands are given: reports to read, text to write.
#pragma once

#include <string>
#include <vector>

#include "cli/report_model.h"

namespace cupool::cli {

/// The reports of these files. Throws UsageError, which ends the command with 2.
std::vector<Report> read_reports(const std::vector<std::string>& files);

/// Writes the text to standard output ("" or "-") or to a file. False: it could not be, which has
/// been said.
bool write_text(const std::string& file, const std::string& text);

}  // namespace cupool::cli
