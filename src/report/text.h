// SPDX-License-Identifier: Apache-2.0
// The report for people: a subset of the JSON report.
#pragma once

#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// The text report of a snapshot, lines ending in '\n'. Pure. Throws only std::bad_alloc.
std::string text_report(const stats::Snapshot& snapshot);

/// One line of the same report, for one rank among many. As text_report().
std::string text_line(const stats::Snapshot& snapshot);

}  // namespace cupool::report
