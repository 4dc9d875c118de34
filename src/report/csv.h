// SPDX-License-Identifier: Apache-2.0
// The report as a table for spreadsheets and data frames: one row per figure. Long rather than
// wide, so that devices, kinds and later versions only add rows.
#pragma once

#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// The CSV report of a snapshot by RFC 4180: a header, lines ending in CR LF, quotes where needed.
/// Columns: timestamp (UTC, RFC 3339), host, pid, rank, device, kind, name, value. The same figures
/// as in JSON. Pure. Throws only std::bad_alloc.
std::string csv_report(const stats::Snapshot& snapshot);

}  // namespace cupool::report
