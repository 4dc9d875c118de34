// SPDX-License-Identifier: Apache-2.0
// The first step of every free: the block is claimed from the program, or the free is answered.
#pragma once

#include <new>
#include <optional>

#include "engine/block/pointer_map.h"
#include "engine/context/context.h"

namespace cupool::engine {

/// A block that a free has claimed, and the life of its context at that time. If the context ends
/// meanwhile, the record may be another block's: it is touched only while is_alive(), as seen under
/// the lock of a cache of that context, which its end empties, or in a visit.
struct ClaimedBlock {
  Block* block = nullptr;
  Context* context = nullptr;
  std::uint64_t life = 0;
  // Of the block, read before the claim: for drop().
  std::uint64_t requested = 0;
  std::uint64_t capacity = 0;

  bool is_alive() const { return context->incarnation() == life; }
};

/// Claims the live block that begins at `address` (PointerMap::claim()).
[[gnu::always_inline]] inline PointerMap::Claim claim_block(PointerMap& blocks, CUdeviceptr address,
                                                            ClaimedBlock* claimed) {
  return blocks.claim(address, &claimed->block, [claimed](const Block& found) {
    claimed->context = found.context;
    // Before the look whether it is usable: a context that ends is marked first.
    claimed->life = claimed->context->incarnation();
    claimed->requested = found.requested;
    claimed->capacity = found.capacity;
    return claimed->context->usable();
  });
}

/// Adds a block to the map. Returns the block that it replaced (PointerMap::insert()). Returns
/// `block` itself if there is no host memory for it: it is not in the map.
inline Block* add_block(PointerMap& blocks, Block* block) noexcept {
  try {
    return blocks.insert(block, [](const Block& found) { return found.context->ends(); });
  } catch (const std::bad_alloc&) {
    return block;
  }
}

/// The result of a free of `address` whose claim failed. `std::nullopt`: not cupool's memory.
std::optional<CUresult> answer_unclaimed(const cuda::Driver& driver, CUdeviceptr address,
                                         PointerMap::Claim claim, const ClaimedBlock& found);

/// Counts the free of a claimed block that is not alive any more, where nothing of it was counted
/// yet: the end of its context has taken it for retired. Does not touch the record.
void drop(const ClaimedBlock& claimed);

/// Counts a claimed block as retired. The caller is in a visit.
void count_retired(Block& block);

/// Counts a claimed block as retired and puts it into the open epoch, whose number it returns. The
/// caller is in a visit.
EpochNumber retire(Block& block);

/// Sets a retired block aside: it is in no list and is never reused.
void set_aside(Block& retired);

}  // namespace cupool::engine
