// SPDX-License-Identifier: Apache-2.0
// The report for programs: every figure of a snapshot. The schema is documented in
// docs/statistics.md.
#pragma once

#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// The JSON report of a snapshot, one object and a line end. Pure. Invalid UTF-8 is written as
/// replacement characters. Throws only std::bad_alloc.
std::string json_report(const stats::Snapshot& snapshot);

}  // namespace cupool::report
