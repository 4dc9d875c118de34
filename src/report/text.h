// SPDX-License-Identifier: Apache-2.0
// The report for people: a subset of the JSON report.
#pragma once

#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// The text report of a snapshot in some fifteen lines, ending in '\n': the verdict first. Pure.
/// Throws only std::bad_alloc, as do the others.
std::string text_summary(const stats::Snapshot& snapshot);

/// The same verdict, and then every figure.
std::string text_report(const stats::Snapshot& snapshot);

/// One line of the same report, for one rank among many.
std::string text_line(const stats::Snapshot& snapshot);

}  // namespace cupool::report
