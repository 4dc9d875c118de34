// SPDX-License-Identifier: Apache-2.0
// Flame graphs of the call sites: pictures without a script, callers above what they call.
#pragma once

#include <string>

#include "cli/page/sites.h"

namespace cupool::cli {

/// The flame graph of one measure; widths are shares of its sum. "" if it is 0 everywhere. `id` is
/// unique in the page.
std::string flame_graph(const SitesReport& sites, const SiteMeasure& measure,
                        const std::string& id);

/// The page's part on call sites: the graphs of allocated bytes and of the peak, and a table. ""
/// without sites.
std::string sites_html(const SitesReport& sites, const std::string& prefix);

}  // namespace cupool::cli
