// SPDX-License-Identifier: Apache-2.0
// Names of the functions in a report's call sites, from what is installed here: symbol tables of
// the modules, debug information by addr2line, and debuginfod where the user has set it up.
#pragma once

#include "cli/page/sites.h"

namespace cupool::cli {

/// Names the frames whose module is here and is the one that ran (its build id tells); the others
/// keep their places. Sites that are the same by name become one. Starts programs.
void name_sites(const std::vector<SitesReport*>& reports);

}  // namespace cupool::cli
