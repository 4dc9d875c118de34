// Figures that follow from a snapshot, computed once for both reports.
#pragma once

#include <cstdint>
#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// Held bytes less the parts that make them up (application, rounding, retired, cached). 0 unless
/// threads were allocating while the snapshot was taken; otherwise a fault of cupool.
std::int64_t unaccounted_bytes(const stats::DeviceSnapshot& device) noexcept;

/// The size that a pool of this program should keep and reserve at start: the highest reserved size
/// of any device's pool, rounded up to 32 MiB (the step by which the driver grows a pool). 0 if no
/// driver pool was used.
std::uint64_t suggested_pool_bytes(const stats::Snapshot& snapshot) noexcept;

/// Bytes as a value that CUPOOL_* options take: "3G", "3104M", "1234".
std::string option_value(std::uint64_t bytes);

}  // namespace cupool::report
