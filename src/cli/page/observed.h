// SPDX-License-Identifier: Apache-2.0
// The story of several observed processes: one verdict on a job.
#pragma once

#include <vector>

#include "cli/page/model.h"
#include "cli/page/story.h"

namespace cupool::cli {

/// The story of observed processes together. The verdict is on their average. Requires that all
/// are observed. Pure.
Story tell_observed(const std::vector<Report>& reports);

/// Whether the verdict on one or several observed processes is that there is something to gain.
bool is_worth_a_try(const std::vector<Report>& reports);

}  // namespace cupool::cli
