// SPDX-License-Identifier: Apache-2.0
// Size classes: the capacity for a request, and the cache list of a capacity. There are eight small
// classes per doubling (above 4 KiB, rounding is at most 12.5 % of a block). From 2 MiB up the unit
// is 2 MiB, as for the driver's own cuMemAlloc, so rounding adds nothing there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cupool::engine {

inline constexpr std::uint64_t kAlignment = 512;         ///< of every address (contract 1, 6)
inline constexpr std::uint64_t kLargeUnit = 2ull << 20;  ///< and alignment of large blocks
inline constexpr std::uint64_t kLinearLimit = 4096;      ///< smaller classes are kAlignment apart
inline constexpr std::size_t kLinearClasses = kLinearLimit / kAlignment;
inline constexpr std::size_t kSmallClasses =
    kLinearClasses + std::size_t{9} * 8;  ///< up to and including 2 MiB

inline unsigned floor_log2(std::uint64_t value) {
  return 63u - static_cast<unsigned>(__builtin_clzll(value));
}

/// Capacity of the block for a request of `bytes`, which is not 0 and at most 2^62.
inline std::uint64_t capacity_for(std::uint64_t bytes) {
  std::uint64_t step = kAlignment;
  if (bytes > kLargeUnit) {
    step = kLargeUnit;
  } else if (bytes > kLinearLimit) {
    step = 1ull << (floor_log2(bytes - 1) - 3);
  }
  return (bytes + step - 1) & ~(step - 1);
}

/// Bytes by which a block may exceed a large request that it serves. Small, because near the
/// device's limit this memory is lost to others.
inline std::uint64_t most_waste(std::uint64_t capacity) {
  constexpr std::uint64_t kMostWaste = 32ull << 20;
  return capacity / 8 < kMostWaste ? capacity / 8 : kMostWaste;
}

inline bool is_large(std::uint64_t capacity) {
  return capacity >= kLargeUnit;
}

/// Index of a small capacity's class, below kSmallClasses. `capacity` is a result of
/// capacity_for().
inline std::size_t small_class(std::uint64_t capacity) {
  if (capacity <= kLinearLimit) return capacity / kAlignment - 1;
  const unsigned power = floor_log2(capacity - 1);
  const std::uint64_t steps = (capacity - (1ull << power)) >> (power - 3);
  return kLinearClasses + std::size_t{power - 12} * 8 + steps - 1;
}

/// As small_class(), for a request of `bytes`. An index of the 2 MiB class or above means a large
/// request.
inline std::size_t small_class_of_request(std::uint64_t bytes) {
  if (bytes <= kLinearLimit) return (bytes - 1) / kAlignment;
  const unsigned power = floor_log2(bytes - 1);
  return kLinearClasses + std::size_t{power - 12} * 8 + ((bytes - 1) >> (power - 3)) - 8;
}

/// Block::kind of a small block. `index`: its class, below kSmallClasses.
inline std::uint8_t kind_of_small(std::size_t index, bool of_pool) {
  return static_cast<std::uint8_t>(index | (of_pool ? 0u : 0x80u));
}
inline std::size_t small_class_of_kind(std::uint8_t kind) {
  return kind & 0x7fu;
}
static_assert(kSmallClasses < 0x7f, "0xff is no kind");

}  // namespace cupool::engine
