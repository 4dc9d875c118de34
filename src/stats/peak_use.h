// SPDX-License-Identifier: Apache-2.0
// How the memory that cupool had taken from a device divided at the moment of its highest use. Kept
// apart from the gauges, whose peaks are of different moments.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cupool::stats {

/// The parts, in bytes: X(member and key, meaning). Their sum is what was taken.
// clang-format off
#define CUPOOL_PEAK_USE_PARTS(X)                                                  \
  X(application_bytes, "Requested bytes of live blocks at the peak use")          \
  X(rounding_bytes, "Capacity beyond the request in live blocks at the peak use") \
  X(retired_bytes, "Freed blocks that the GPU may still have used at the peak use") \
  X(cached_bytes, "Cached blocks at the peak use")                                \
  X(driver_slack_bytes, "Memory of the driver's pools in no block at the peak use")
// clang-format on

struct PeakUse {
  std::int64_t time_ns = 0;  ///< since the start of the process (since_start_ns()); 0: no sample
#define CUPOOL_PEAK_USE_PART(key, help) std::int64_t key = 0;
  CUPOOL_PEAK_USE_PARTS(CUPOOL_PEAK_USE_PART)
#undef CUPOOL_PEAK_USE_PART
  std::int64_t plain_bytes = 0;  ///< the part of the blocks that is in no pool

  bool valid() const noexcept {
    return time_ns != 0;
  }
  /// Bytes in blocks.
  std::int64_t held_bytes() const noexcept {
    return application_bytes + rounding_bytes + retired_bytes + cached_bytes;
  }
  /// Bytes taken from the device.
  std::int64_t taken_bytes() const noexcept {
    return held_bytes() + driver_slack_bytes;
  }
  /// Bytes that the driver's pools had reserved.
  std::int64_t reserved_bytes() const noexcept {
    return taken_bytes() - plain_bytes;
  }
  /// Whether no part is negative. One is if a thread's tally is not folded, or the figures are of
  /// different moments.
  bool adds_up() const noexcept {
#define CUPOOL_PEAK_USE_PART(key, help) key >= 0 &&
    return CUPOOL_PEAK_USE_PARTS(CUPOOL_PEAK_USE_PART) plain_bytes >= 0;
#undef CUPOOL_PEAK_USE_PART
  }
  /// Whether a moment with these figures is at least as high: more taken, or no less taken and no
  /// less in blocks.
  bool is_reached_by(std::int64_t taken, std::int64_t held) const noexcept {
    const std::int64_t before = taken_bytes();
    return taken > before || (taken == before && held >= held_bytes());
  }
};

/// The last sample. One writer at a time; any number of readers, who never wait. A writer that is
/// interrupted for good leaves the sample before it readable.
class PeakUseRecord {
 public:
  constexpr PeakUseRecord() noexcept = default;

  void write(const PeakUse& use) noexcept {
    const std::uint64_t version = version_.load(std::memory_order_relaxed) + 1;
    const Values values = values_of(use);
    Slot& slot = slots_[version % 2];
    // A reader that sees one of these values also sees the version before them.
    for (std::size_t i = 0; i < kValues; ++i) slot[i].store(values[i], std::memory_order_release);
    version_.store(version, std::memory_order_release);
  }
  PeakUse read() const noexcept {
    for (;;) {
      const std::uint64_t version = version_.load(std::memory_order_acquire);
      const Slot& slot = slots_[version % 2];
      Values values{};
      for (std::size_t i = 0; i < kValues; ++i) values[i] = slot[i].load(std::memory_order_acquire);
      if (version_.load(std::memory_order_relaxed) == version) return use_of(values);
    }
  }

 private:
  static constexpr std::size_t kValues = 7;
  using Values = std::array<std::int64_t, kValues>;
  using Slot = std::array<std::atomic<std::int64_t>, kValues>;

  static Values values_of(const PeakUse& use) noexcept {
#define CUPOOL_PEAK_USE_PART(key, help) use.key,
    return {CUPOOL_PEAK_USE_PARTS(CUPOOL_PEAK_USE_PART) use.time_ns, use.plain_bytes};
#undef CUPOOL_PEAK_USE_PART
  }
  static PeakUse use_of(const Values& values) noexcept {
    PeakUse use;
    std::size_t i = 0;
#define CUPOOL_PEAK_USE_PART(key, help) use.key = values[i++];
    CUPOOL_PEAK_USE_PARTS(CUPOOL_PEAK_USE_PART)
#undef CUPOOL_PEAK_USE_PART
    use.time_ns = values[i++];
    use.plain_bytes = values[i];
    return use;
  }

  Slot slots_[2] = {};  ///< the newest sample is in the one of its version
  std::atomic<std::uint64_t> version_{0};
};

/// The record of a device by its driver ordinal (see device()). Static storage, never freed.
PeakUseRecord& peak_use_of(int ordinal) noexcept;

/// Forgets all samples; for a forked child, before other threads exist.
void reset_peak_uses() noexcept;

}  // namespace cupool::stats
