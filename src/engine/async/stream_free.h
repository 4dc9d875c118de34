// SPDX-License-Identifier: Apache-2.0
// A free into the cache of a stream, beside the end of its context and the next life. No visit
// holds that end off. Apart from the rest, so that every interleaving can be explored.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/async/stream_caches.h"

namespace cupool::engine {

enum class StreamFree {
  done,
  invalid,  ///< the block is not live: another thread has freed it, or its context has ended
  full,     ///< the cache takes no more: the block is live, in the state `word`
  gone,     ///< the cache is another stream's by now: the block is live, in the state `word`
  lost      ///< the context has ended since: the block is the caller's, and has no record soon
};

/// Frees `block`, whose state was `word`, into a cache. `context` has incarnation(), which was
/// `life` before the caller saw the context usable. `open()`: the open epoch.
template <typename Life, typename Open>
[[gnu::always_inline]] inline StreamFree free_into(const StreamCaches::Place& place, Block& block,
                                                   std::uint64_t word, const Life& context,
                                                   std::uint64_t life, const Open& open) {
  if (BlockStateCell::state_of(word) != BlockState::live || !block.state.claim(word)) {
    return StreamFree::invalid;
  }
  const StreamCache::Taken taken = place.cache->push(place.use, block, open());
  if (taken == StreamCache::Taken::yes) return StreamFree::done;
  // A claimed block is passed over by what follows from the end of its context. Live again, it
  // would be taken for one of the next life.
  if (context.incarnation() != life) return StreamFree::lost;
  block.state.store(BlockState::live);
  // Or the context has ended between the two, and the block was passed over.
  std::atomic_thread_fence(std::memory_order_seq_cst);  // ContextLife::fence()
  if (context.incarnation() != life && block.state.claim(word)) return StreamFree::lost;
  return taken == StreamCache::Taken::full ? StreamFree::full : StreamFree::gone;
}

}  // namespace cupool::engine
