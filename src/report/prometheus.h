// SPDX-License-Identifier: Apache-2.0
// The report for Prometheus, for node_exporter's textfile collector.
#pragma once

#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// A snapshot in the Prometheus text format 0.0.4: HELP, TYPE and samples of each metric together,
/// base units (bytes, seconds), `_total` only on counters. The labels are `device` (the driver's
/// ordinal; -1 if unknown), `pid` and `rank` (empty without a launcher). No timestamps: the
/// textfile collector refuses them. Pure. Throws only std::bad_alloc.
std::string prometheus_report(const stats::Snapshot& snapshot);

}  // namespace cupool::report
