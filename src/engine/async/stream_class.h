// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory by size. The driver is asked for sizes that several requests share. A block
// is an eighth larger than the request at most, or by the driver's own unit of 512 bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/block/size_class.h"

namespace cupool::engine {

/// Larger requests are the driver's.
inline constexpr std::uint64_t kLargestStreamBlock = 1ull << 40;
inline constexpr std::size_t kStreamClasses = 248;

/// Bytes of the block for a request of `bytes`, which is not 0 and at most kLargestStreamBlock:
/// eight sizes for each doubling, and multiples of 2 MiB above 16 MiB.
inline std::uint64_t stream_capacity_for(std::uint64_t bytes) {
  std::uint64_t step = kAlignment;
  if (bytes > kLinearLimit) {
    step = std::min<std::uint64_t>(1ull << (floor_log2(bytes - 1) - 3), kLargeUnit);
  }
  return (bytes + step - 1) & ~(step - 1);
}

/// The class of a capacity: eight for each doubling, single units below eight.
inline std::size_t stream_class(std::uint64_t capacity) {
  const std::uint64_t units = capacity / kAlignment;
  if (units < 8) return units;
  const unsigned power = floor_log2(units);
  return (std::size_t{power} - 3) * 8 + (units >> (power - 3));
}
static_assert(kLargestStreamBlock / kAlignment == 1ull << 31,
              "8 * (31 - 3) + 8, and the class above it, are below the classes");

/// Bytes that the driver would count as used for a request of `bytes` in such a block.
inline std::uint64_t stream_used(std::uint64_t bytes, std::uint64_t capacity) {
  return std::min((bytes + kAlignment - 1) & ~(kAlignment - 1), capacity);
}

/// Whether a block may serve a request of `bytes`, whose capacity is `wanted`.
inline bool stream_block_fits(std::uint64_t capacity, std::uint64_t wanted, std::uint64_t bytes) {
  return capacity == wanted || (capacity > wanted && capacity - bytes <= bytes / 8);
}

}  // namespace cupool::engine
