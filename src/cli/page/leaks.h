// SPDX-License-Identifier: Apache-2.0
// Memory that was never freed: reading the list of a report, and the words for its places. Names of
// functions are found separately (cli/site_names.h).
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

/// Reads the report's `leaks`, with the names that it has. Throws ReportError.
void read_leaks(const JsonReader& json, Report* report);

/// Puts the call sites of leaks in words again, once their frames are named.
void name_leaks(Report* report);

/// Files of frames without a name that were not looked into: the report has no build id of them.
std::vector<std::string> unchecked_files(const std::vector<Report>& reports);

}  // namespace cupool::cli
