// The few figures that are computed from others, and nowhere else.
#include "report/derived.h"

#include <algorithm>

namespace cupool::report {

using stats::Gauge;

std::int64_t unaccounted_bytes(const stats::DeviceSnapshot& device) noexcept {
  return device[Gauge::held_bytes].current - device[Gauge::application_bytes].current -
         device[Gauge::rounding_bytes].current - device[Gauge::retired_bytes].current -
         device[Gauge::cached_bytes].current;
}

std::uint64_t suggested_pool_bytes(const stats::Snapshot& snapshot) noexcept {
  constexpr std::uint64_t step = std::uint64_t{32} << 20;
  std::uint64_t highest = 0;
  for (const stats::DeviceSnapshot& device : snapshot.devices) {
    if (device.pool.valid) highest = std::max(highest, device.pool.reserved_high);
  }
  const std::uint64_t steps = highest / step + (highest % step != 0 ? 1 : 0);
  return steps * step;
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
