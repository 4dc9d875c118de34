// SPDX-License-Identifier: Apache-2.0
// The first step of every free: the block is claimed from the program, or the free is answered.
#pragma once

#include <optional>

#include "engine/block/pointer_map.h"
#include "engine/context/context.h"

namespace cupool::engine {

/// Claims the live block that begins at `address` (PointerMap::claim()).
[[gnu::always_inline]] inline PointerMap::Claim claim_block(PointerMap& blocks, CUdeviceptr address,
                                                            Block** block) {
  return blocks.claim(address, block, [](const Block& found) { return found.context->usable(); });
}

/// Adds a block to the map. Returns the block that it replaced (PointerMap::insert()).
inline Block* add_block(PointerMap& blocks, Block* block) {
  return blocks.insert(block, [](const Block& found) { return found.context->ends(); });
}

/// The result of a free of `address` whose claim failed. `std::nullopt`: not cupool's memory.
std::optional<CUresult> answer_unclaimed(const cuda::Driver& driver, CUdeviceptr address,
                                         PointerMap::Claim claim, const Block* found);

/// Counts a claimed block as retired.
void count_retired(Block& block);

/// Counts a claimed block as retired and puts it into the open epoch, whose number it returns.
EpochNumber retire(Block& block);

/// Sets a retired block aside: it is in no list and is never reused.
void set_aside(Block& retired);

}  // namespace cupool::engine
