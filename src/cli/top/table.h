// SPDX-License-Identifier: Apache-2.0
// What `cupool top` shows of processes: a table, all figures of some, or JSON.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/top/processes.h"

namespace cupool::cli {

/// The processes of one reading, and those of the reading before, for rates.
struct LiveReading {
  std::vector<LiveProcess> now;
  std::vector<LiveProcess> before;
};

/// A row for each process below one of headings. In fewer than `columns` columns (0: any number)
/// the columns of least interest are left out; the last one, the command, may still be too long.
std::string live_table(const LiveReading& reading, std::size_t columns);

/// Every figure of each process, device by device, by the labels of the reports.
std::string live_details(const LiveReading& reading);

/// The processes in a line.
std::string live_summary(const LiveReading& reading);

/// One object in a line. `wall_ns`: time of the reading since 1970.
std::string live_json(const LiveReading& reading, std::uint64_t wall_ns);

}  // namespace cupool::cli
