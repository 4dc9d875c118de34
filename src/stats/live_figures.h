// SPDX-License-Identifier: Apache-2.0
// The figures of a running process, as it tells them to `cupool top` by its channel: one message of
// fixed size. Read with docs/design.md, section Neighbours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "stats/device_stats.h"

namespace cupool::stats {

/// What is told of each device, in this order.
inline constexpr Gauge kLiveGauges[] = {Gauge::device_bytes,    Gauge::application_bytes,
                                        Gauge::rounding_bytes,  Gauge::retired_bytes,
                                        Gauge::cached_bytes,    Gauge::held_bytes,
                                        Gauge::plain_bytes,     Gauge::passthrough_bytes,
                                        Gauge::host_held_bytes, Gauge::host_cached_bytes};
inline constexpr Counter kLiveCounters[] = {Counter::malloc_calls_total, Counter::free_calls_total,
                                            Counter::free_waits_total, Counter::free_wait_ns_total};

struct LiveDevice {
  std::int32_t ordinal = 0;  ///< in that process; -1: several, beyond LiveFigures::kMostDevices
  std::uint32_t unused = 0;
  std::array<unsigned char, 16> id{};  ///< UUID; zeros: unknown
  std::array<char, 48> name{};
  std::uint64_t total_memory_bytes = 0;
  std::uint64_t pool_reserved_bytes = 0;  ///< when a pool last grew or was trimmed
  std::int64_t peak_taken_bytes = 0;      ///< highest use, see PeakUse; 0: no sample
  std::array<GaugeValue, std::size(kLiveGauges)> gauges{};
  std::array<std::uint64_t, std::size(kLiveCounters)> counters{};

  const GaugeValue& operator[](Gauge gauge) const;
  std::uint64_t operator[](Counter counter) const;
  /// Device memory that the process has from the driver: pools, and what is in none.
  std::uint64_t reserved_bytes() const;
  /// Adds the figures of another device.
  void add(const LiveDevice& other);
};

enum class LaneState : std::uint32_t { none, inside, away, left };
inline constexpr std::size_t kLaneStates = 4;

struct LiveFigures {
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kMostDevices = 16;

  std::uint64_t magic = 0;  ///< channel::kNeighbourMagic
  std::uint32_t version = kVersion;
  std::int32_t pid = 0;       ///< in the namespace of that process
  std::uint64_t time_ns = 0;  ///< of the reading, since the process began to use the GPU
  std::uint32_t waiting = 0;  ///< frees that wait for the GPU now
  LaneState lane = LaneState::none;
  std::array<char, 32> program{};
  std::array<char, 12> free_mode{};
  std::array<char, 12> backend{};
  std::uint64_t device_count = 0;
  std::array<LiveDevice, kMostDevices> devices{};

  /// Adds a device. Those beyond kMostDevices are added up in the last place.
  void add(const LiveDevice& device);
};
static_assert(std::is_trivially_copyable<LiveFigures>::value, "it is sent as it is");

enum class LiveAnswer { figures, other_version, none };

/// Reads the answer of another process, which may hold anything. Counts and texts of `figures` are
/// then within their bounds; the figures themselves are as told. Pure.
LiveAnswer read_live_figures(const void* message, std::size_t bytes, LiveFigures* figures);

/// Copies as much of the text as fits, with a zero at the end.
template <std::size_t size>
void set_text(std::array<char, size>* to, const char* text) {
  std::size_t i = 0;
  for (; i + 1 < size && text[i] != '\0'; ++i) (*to)[i] = text[i];
  (*to)[i] = '\0';
}

}  // namespace cupool::stats
