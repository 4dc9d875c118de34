// SPDX-License-Identifier: Apache-2.0
// Reads what a process told, without trust in it.
#include "stats/live_figures.h"

#include <algorithm>
#include <cstring>

#include "channel/messages.h"

namespace cupool::stats {
namespace {

template <std::size_t size>
bool ends(const std::array<char, size>& text) {
  return std::memchr(text.data(), '\0', size) != nullptr;
}

// What others tell may be anything: no overflow.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <typename Figure, std::size_t size>
std::size_t index_in(const Figure (&list)[size], Figure figure) {
  const std::size_t index = static_cast<std::size_t>(std::find(list, list + size, figure) - list);
  return std::min(index, size - 1);
}

}  // namespace

const GaugeValue& LiveDevice::operator[](Gauge gauge) const {
  return gauges[index_in(kLiveGauges, gauge)];
}

std::uint64_t LiveDevice::operator[](Counter counter) const {
  return counters[index_in(kLiveCounters, counter)];
}

std::uint64_t LiveDevice::reserved_bytes() const {
  const auto& self = *this;
  return pool_reserved_bytes + static_cast<std::uint64_t>(self[Gauge::plain_bytes].current) +
         static_cast<std::uint64_t>(self[Gauge::passthrough_bytes].current);
}

void LiveDevice::add(const LiveDevice& other) {
  total_memory_bytes += other.total_memory_bytes;
  pool_reserved_bytes += other.pool_reserved_bytes;
  peak_taken_bytes = sum(peak_taken_bytes, other.peak_taken_bytes);
  for (std::size_t i = 0; i < gauges.size(); ++i) {
    gauges[i].current = sum(gauges[i].current, other.gauges[i].current);
    gauges[i].peak = sum(gauges[i].peak, other.gauges[i].peak);
  }
  for (std::size_t i = 0; i < counters.size(); ++i) counters[i] += other.counters[i];
}

void LiveFigures::add(const LiveDevice& device) {
  if (device_count < kMostDevices) {
    devices[device_count++] = device;
    return;
  }
  LiveDevice& rest = devices.back();
  rest.ordinal = -1;
  rest.id = {};
  rest.name = {};
  rest.add(device);
}

LiveAnswer read_live_figures(const void* message, std::size_t bytes, LiveFigures* figures) {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  if (bytes < sizeof magic + sizeof version) return LiveAnswer::none;
  std::memcpy(&magic, message, sizeof magic);
  std::memcpy(&version, static_cast<const char*>(message) + sizeof magic, sizeof version);
  if (magic != channel::kNeighbourMagic) return LiveAnswer::none;
  if (version != LiveFigures::kVersion || bytes != sizeof *figures)
    return LiveAnswer::other_version;
  std::memcpy(static_cast<void*>(figures), message, sizeof *figures);
  bool usable = figures->device_count <= LiveFigures::kMostDevices &&
                static_cast<std::uint32_t>(figures->lane) < kLaneStates && ends(figures->program) &&
                ends(figures->free_mode) && ends(figures->backend);
  for (const LiveDevice& device : figures->devices) usable = usable && ends(device.name);
  return usable ? LiveAnswer::figures : LiveAnswer::none;
}

}  // namespace cupool::stats
