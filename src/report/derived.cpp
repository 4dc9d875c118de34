// SPDX-License-Identifier: Apache-2.0
// The figures that are computed from others; nothing else computes them.
#include "report/derived.h"

#include <algorithm>

#include "stats/pool_growth.h"

namespace cupool::report {

using stats::Gauge;

std::int64_t unaccounted_bytes(const stats::DeviceSnapshot& device) noexcept {
  return device[Gauge::held_bytes].current - device[Gauge::application_bytes].current -
         device[Gauge::rounding_bytes].current - device[Gauge::retired_bytes].current -
         device[Gauge::cached_bytes].current;
}

bool is_plain_for_rdma(const stats::ProcessInfo& process) noexcept {
  const auto& reason = process.mode_reason;
  return reason && !reason->library.empty() && reason->backend == "malloc";
}

bool modes_differ(const stats::ProcessInfo& process) noexcept {
  const auto& reason = process.mode_reason;
  return reason && (reason->free_mode != process.requested_free_mode ||
                    reason->backend != process.requested_backend);
}

std::string modes_in_words(const stats::ProcessInfo& process) {
  if (!process.mode_reason) return {};
  const stats::ModeReason& reason = *process.mode_reason;
  if (!modes_differ(process)) return reason.cause + "; free mode and backend are as requested";
  const bool observed = process.backend == "driver";
  return "Requested: free mode " + process.requested_free_mode + ", backend " +
         process.requested_backend + ". " + (observed ? "Under cupool" : "In force") +
         ": free mode " + reason.free_mode + ", backend " + reason.backend +
         (reason.backend == "malloc" ? " (plain memory)" : "") + ", because " + reason.cause;
}

bool every_free_waits(const stats::ProcessInfo& process) noexcept {
  const auto& reason = process.mode_reason;
  if (process.free_mode == "sync") return true;
  return process.free_mode == "driver" &&
         (reason ? reason->free_mode : process.requested_free_mode) == "sync";
}

std::uint64_t unwaited_frees(const std::array<std::uint64_t, stats::kCounters>& counters) noexcept {
  using stats::Counter;
  const auto value = [&counters](Counter c) { return counters[static_cast<std::size_t>(c)]; };
  std::uint64_t rest = value(Counter::free_calls_total);
  for (const Counter other :
       {Counter::free_waits_total, Counter::free_passthrough_total, Counter::free_foreign_total,
        Counter::free_null_total, Counter::free_rejected_total}) {
    rest -= std::min(rest, value(other));
  }
  return rest;
}

std::uint64_t peak_bytes(const DevicePeaks& peaks) noexcept {
  // Held memory includes plain memory, which is in no pool.
  const std::uint64_t taken = std::max(peaks.held, peaks.reserved);
  return std::max({taken, taken + peaks.passed, peaks.own});
}

std::uint64_t suggested_pool_bytes(const stats::Snapshot& snapshot) noexcept {
  if (is_plain_for_rdma(snapshot.process)) return 0;
  std::uint64_t highest = 0;
  for (const stats::DeviceSnapshot& device : snapshot.devices) {
    if (device.pool.valid) highest = std::max(highest, device.pool.reserved_high);
  }
  return stats::in_growth_steps(highest);
}

const stats::DeviceSample* device_in(const stats::Sample* sample, int ordinal) noexcept {
  if (sample == nullptr) return nullptr;
  for (const stats::DeviceSample& device : sample->devices) {
    if (device.ordinal == ordinal) return &device;
  }
  return nullptr;
}

std::uint64_t growth_of(stats::Counter counter, const stats::DeviceSample& sample,
                        const stats::DeviceSample* before) noexcept {
  const auto index = static_cast<std::size_t>(counter);
  return sample.counters[index] - (before == nullptr ? 0 : before->counters[index]);
}

std::string option_value(std::uint64_t bytes) {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  if (bytes != 0 && bytes % gib == 0) return std::to_string(bytes / gib) + "G";
  if (bytes != 0 && bytes % mib == 0) return std::to_string(bytes / mib) + "M";
  return std::to_string(bytes);
}

}  // namespace cupool::report
