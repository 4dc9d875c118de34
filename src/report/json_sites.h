// SPDX-License-Identifier: Apache-2.0
// Where memory comes from, in JSON.
#pragma once

#include "report/json_timeline.h"
#include "stats/sites.h"

namespace cupool::report {

/// Null without CUPOOL_SITES.
Json sites_of(const stats::Sites& sites);

}  // namespace cupool::report
