// SPDX-License-Identifier: Apache-2.0
// Page-locked memory by size and kind. The driver is asked for whole pages, exactly as many as the
// program wants; a block serves smaller requests of its class and the next lower one, up to an
// eighth of waste.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/block/size_class.h"

namespace cupool::engine {

inline constexpr std::uint64_t kHostPage = 4096;
/// Larger requests are the driver's.
inline constexpr std::uint64_t kLargestHostBlock = 1ull << 40;
inline constexpr std::size_t kHostClasses = 256;

/// Bytes of the block for a request of `bytes`, which is not 0 and at most kLargestHostBlock.
inline std::uint64_t host_capacity_for(std::uint64_t bytes) {
  return (bytes + kHostPage - 1) & ~(kHostPage - 1);
}

/// The class of a capacity, in whole pages: eight for each doubling, single pages below eight.
inline std::size_t host_class(std::uint64_t capacity) {
  const std::uint64_t pages = capacity / kHostPage;
  if (pages < 8) return pages;
  const unsigned power = floor_log2(pages);
  return (std::size_t{power} - 3) * 8 + (pages >> (power - 3));
}
static_assert(kLargestHostBlock / kHostPage == 1ull << 28, "8 * (28 - 3) + 8 is below the classes");

/// Whether a block may serve a request.
inline bool host_block_fits(std::uint64_t capacity, std::uint64_t wanted) {
  return capacity >= wanted && capacity - wanted <= wanted / 8;
}

/// What an allocation asks for besides its size; blocks of two kinds are never exchanged. The flags
/// of cuMemHostAlloc, or cuMemAllocHost, whose flags the driver chooses. kNoHostKind: flags that
/// cupool does not know, and write-combined memory, whose device address may differ from the
/// host's; cupool's tables know the latter only.
inline constexpr std::size_t kHostKinds = 5;
inline constexpr unsigned kPlainHostKind = 4;
inline constexpr unsigned kNoHostKind = 5;
inline constexpr unsigned kWriteCombined = 4;  ///< CU_MEMHOSTALLOC_WRITECOMBINED
inline unsigned host_kind(unsigned flags) {
  return flags < kWriteCombined ? flags : kNoHostKind;
}

/// Block::kind of page-locked memory: the kind, and the NUMA node of its pages.
inline constexpr unsigned kHostNodes = 8;
/// Of the cache, for each node.
inline constexpr std::size_t kHostShards = 64;
inline std::uint8_t host_tag(unsigned kind, unsigned node) {
  return static_cast<std::uint8_t>(kind | (node % kHostNodes) << 4);
}
inline unsigned host_kind_of(std::uint8_t tag) {
  return tag & 0xfu;
}
inline unsigned host_node_of(std::uint8_t tag) {
  return tag >> 4;
}

}  // namespace cupool::engine
