// SPDX-License-Identifier: Apache-2.0
// The cache of page-locked memory, in every interleaving of few frees and allocations. The end of
// its context is in lives_test.cpp.
#include "explored_atomic.h"

// The cache itself, with the explorer's atomics.
#include "engine/host/host_class.h"
// One shard for each of two nodes: a program chooses the shard by the node.
#define kHostNodes 2u
#define kHostShards \
  std::size_t {     \
    1               \
  }
// NOLINTBEGIN(bugprone-suspicious-include)
#include "engine/host/host_cache.cpp"
#include "engine/host/host_shards.cpp"
// NOLINTEND(bugprone-suspicious-include)
#undef kHostNodes
#undef kHostShards

namespace explorer {
namespace {

using cupool::engine::Block;
using cupool::engine::BlockState;
using cupool::engine::BlockStateCell;
using cupool::engine::EpochNumber;
using cupool::engine::host_tag;
using cupool::engine::HostCache;
using cupool::engine::kHostPage;
using cupool::engine::kNoEpoch;

void expect_right(const Program& program) {
  const Result result = explore(program);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete) << result.executions << " executions";
}

// A context with page-locked blocks of one page, two at most of them in the cache.
struct World {
  World() {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].address = 0x10000 * (i + 1);
      blocks[i].capacity = kHostPage;
      blocks[i].requested = 1;
      blocks[i].kind = host_tag(0, static_cast<unsigned>(i) % 2);
      blocks[i].state.store(BlockState::live);
    }
    cache.set_limit(2 * kHostPage);
    pop(0);  // this thread has a number from now on
  }

  /// The program's free, as in HostFrees. Behind the work of `epoch`, if there is one.
  void free(std::size_t index, EpochNumber epoch = kNoEpoch) {
    Block& block = blocks[index];
    const std::uint64_t word = block.state.word();
    if (BlockStateCell::state_of(word) != BlockState::live || !block.state.claim(word)) return;
    records[index].write(1);
    const auto is_alive = [] { return true; };
    const HostCache::Taken taken =
        epoch == kNoEpoch ? cache.cache(block, is_alive) : cache.retire(block, epoch, is_alive);
    if (taken == HostCache::Taken::full) block.state.store(BlockState::live);
  }
  std::optional<std::size_t> pop(unsigned node, EpochNumber complete = kNoEpoch) {
    const auto memory =
        reinterpret_cast<std::uintptr_t>(cache.pop(kHostPage, kHostPage, 0, node, complete));
    if (memory == 0) return std::nullopt;
    return memory / 0x10000 - 1;
  }
  HostCache cache;
  std::array<Block, 3> blocks;
  std::array<Data<int>, 3> records;  ///< what only the owner of the block may use
};

// Three threads, of which one frees, one allocates and one asks what it finds at an address.
Program asking_beside_an_allocation() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>();
    world->free(0);
    run.thread([=] { world->pop(0); });
    run.thread([=] { world->free(2); });
    run.thread([=] {
      if (world->blocks[0].state.load() != BlockState::live) return;
      require(world->blocks[0].requested == kHostPage, "what is live has its owner's size");
    });
    run.after([=] {
      const std::uint64_t idle = world->cache.bytes();
      std::uint64_t popped = 0;
      while (world->pop(0)) popped += kHostPage;
      require(popped == idle && world->cache.bytes() == 0, "no block is lost");
    });
  };
}

// Retired blocks, of which one thread sees that the GPU has left them, one makes them idle, and one
// allocates.
Program retired_memory() {
  struct State : World {
    std::atomic<EpochNumber> complete{kNoEpoch};
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    state->free(0, EpochNumber{1});
    run.thread([=] {
      state->records[0].write(4);  // the GPU's last use
      state->complete.store(EpochNumber{1}, std::memory_order_release);
    });
    run.thread([=] { state->cache.reclaim(state->complete.load(std::memory_order_acquire)); });
    run.thread([=] {
      auto popped = state->pop(0);
      if (!popped) popped = state->pop(0, state->complete.load(std::memory_order_acquire));
      if (popped) state->records[0].write(5);  // its next owner's
    });
    run.after([=] {
      state->pop(0, EpochNumber{1});
      require(state->cache.retired_bytes() == 0 && !state->cache.any(), "no block is lost");
    });
  };
}

// Two frees where there is room for one, all of it allotted to a shard that does not use it.
Program freeing_at_the_limit(bool one_shard) {
  return [=](Threads& run) {
    const auto world = std::make_shared<World>();
    world->cache.set_limit(kHostPage);
    world->free(0);
    world->pop(0);
    run.thread([=] { world->free(one_shard ? 2 : 0); });
    run.thread([=] { world->free(1); });
    run.after([=] {
      require(world->cache.bytes() <= kHostPage, "the cache keeps its limit");
      world->cache.take(HostCache::Which::all);
      world->blocks[1].state.store(BlockState::live);
      world->free(1);
      require(world->cache.bytes() == kHostPage, "room comes back");
    });
  };
}

TEST(Explorer, PageLockedMemory) {
  const std::vector<Program> programs = {asking_beside_an_allocation(), retired_memory()};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "host_cache.h"), std::vector<std::string>{});
  EXPECT_EQ(unneeded_orders(programs, "host_cache.cpp"), std::vector<std::string>{});
  // Nothing but the limit, whose counts order nothing.
  for (const bool one_shard : {true, false}) expect_right(freeing_at_the_limit(one_shard));
}

}  // namespace
}  // namespace explorer
