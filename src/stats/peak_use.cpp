// SPDX-License-Identifier: Apache-2.0
// The devices' records, in zero-initialised static storage.
#include "stats/peak_use.h"

#include "stats/device_stats.h"

namespace cupool::stats {

namespace {

// The last entry is for unknown ordinals.
PeakUseRecord g_records[kMaxDevices + 1];

}  // namespace

PeakUseRecord& peak_use_of(int ordinal) noexcept {
  const bool known = ordinal >= 0 && ordinal < kMaxDevices;
  return g_records[known ? ordinal : kMaxDevices];
}

void reset_peak_uses() noexcept {
  for (PeakUseRecord& each : g_records) {
    if (each.read().valid()) each.write(PeakUse{});
  }
}

}  // namespace cupool::stats
