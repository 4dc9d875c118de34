// SPDX-License-Identifier: Apache-2.0
// Figures derived from a snapshot, computed once for all reports.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// Whether an RDMA library rules out the pools for new memory. Advice on pools is then void.
bool is_plain_for_rdma(const stats::ProcessInfo& process) noexcept;

/// Whether a reason changed the free mode or the backend: in force, or in an observed run, as they
/// would be.
bool modes_differ(const stats::ProcessInfo& process) noexcept;

/// The modes as requested and in force (of an observed run: as they would be), and the reason.
/// Empty without a reason. Throws only std::bad_alloc.
std::string modes_in_words(const stats::ProcessInfo& process);

/// Whether every free waits for the GPU, or in an observed run, would wait under cupool.
bool every_free_waits(const stats::ProcessInfo& process) noexcept;

/// The gauges that a sample of the time series shows, in this order.
inline constexpr stats::Gauge kSampledGauges[] = {
    stats::Gauge::application_bytes, stats::Gauge::rounding_bytes, stats::Gauge::retired_bytes,
    stats::Gauge::cached_bytes,      stats::Gauge::held_bytes,     stats::Gauge::passthrough_bytes};

/// Held bytes minus their parts (application, rounding, retired, cached). 0, unless threads were
/// allocating during the snapshot; any other difference is a fault of cupool.
std::int64_t unaccounted_bytes(const stats::DeviceSnapshot& device) noexcept;

/// Frees that did not wait for the GPU and were not left to the driver: what remains of all frees
/// after those that count otherwise.
std::uint64_t unwaited_frees(const std::array<std::uint64_t, stats::kCounters>& counters) noexcept;

/// What the peak of a device's memory is told from, in bytes. They are of different moments.
struct DevicePeaks {
  std::uint64_t held = 0;      ///< peak of the memory that cupool held
  std::uint64_t reserved = 0;  ///< peak of what the driver's pools had reserved
  std::uint64_t own = 0;       ///< peak of the program's own live memory
  std::uint64_t passed = 0;    ///< served by the driver and live at the time of the report
};

/// The peak of a device's memory with cupool, for every report alike: what cupool took and what the
/// driver served beside it, but never less than the program's own.
std::uint64_t peak_bytes(const DevicePeaks& peaks) noexcept;

/// The size that a pool of this program should keep and reserve at start. It is the highest
/// reserved size of any device's pool, rounded up to the driver's growth step
/// (stats/pool_growth.h). 0 if no driver pool was used.
std::uint64_t suggested_pool_bytes(const stats::Snapshot& snapshot) noexcept;

/// The sample of a device, or null if there is none (or no `sample`).
const stats::DeviceSample* device_in(const stats::Sample* sample, int ordinal) noexcept;

/// The growth of a counter since the previous sample, or since the start if that is null.
std::uint64_t growth_of(stats::Counter counter, const stats::DeviceSample& sample,
                        const stats::DeviceSample* before) noexcept;

/// Bytes as a value of CUPOOL_* options: "3G", "3104M", "1234".
std::string option_value(std::uint64_t bytes);

}  // namespace cupool::report
