// SPDX-License-Identifier: Apache-2.0
// The caches of streams (CUPOOL_ASYNC=serve), in every interleaving of frees, allocations, and the
// ends of streams and caches. The properties: a block has one owner, who comes behind the last one;
// none is lost; the caches keep their limit. The end of their context is in lives_test.cpp.
#include "util/log.h"

namespace cupool::log {

// Nothing is written.
std::atomic<int> detail::threshold{0};
void write(Level, const char*, ...) noexcept {}

}  // namespace cupool::log

// Used as they are.
#include "cuda/driver.h"
#include "stats/device_stats.h"

#include "explored_atomic.h"

// The parts themselves, with the explorer's atomics.
// NOLINTBEGIN(bugprone-suspicious-include)
#include "engine/async/stream_caches.cpp"
#include "engine/async/stream_free.h"
// NOLINTEND(bugprone-suspicious-include)

namespace explorer {
namespace {

using cupool::engine::Block;
using cupool::engine::BlockList;
using cupool::engine::BlockState;
using cupool::engine::EpochNumber;
using cupool::engine::kNoEpoch;
using cupool::engine::StreamCaches;
using cupool::engine::StreamFree;

constexpr std::uint64_t kBytes = 4096;

CUstream stream_of(std::uintptr_t number) {
  return reinterpret_cast<CUstream>(0x1000 * number);
}

// A context with live blocks, and room for two of them in the caches.
struct World {
  explicit World(std::uint64_t limit = 2 * kBytes) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].address = 0x10000 * (i + 1);
      blocks[i].capacity = kBytes;
      blocks[i].requested = 1;
      blocks[i].state.store(BlockState::live);
    }
    caches.set_limit(limit);
  }

  StreamCaches::Place place(CUstream stream) {
    return caches.find_or_add({context, 1, stream}, stats);
  }
  /// The program's free (AsyncMemory::try_free(), then free_slowly()). True: it is in a cache.
  bool free(std::size_t index, CUstream stream, const StreamCaches::Place* known = nullptr) {
    records[index].write(1);  // the last use, as far as the host may know
    StreamCaches::Place in = known == nullptr ? place(stream) : *known;
    StreamFree freed = push(index, in);
    if (freed == StreamFree::gone) freed = push(index, in = place(stream));
    if (freed == StreamFree::full && caches.allot(in, kBytes)) freed = push(index, in);
    require(freed != StreamFree::invalid && freed != StreamFree::lost, "the block was live");
    return freed == StreamFree::done;
  }
  StreamFree push(std::size_t index, const StreamCaches::Place& in) {
    Block& block = blocks[index];
    return free_into(in, block, block.state.word(), life, 1, [] { return kNoEpoch; });
  }

  /// An allocation in the stream of this place.
  bool pop(const StreamCaches::Place& in, std::uint64_t bytes = kBytes) {
    return own(in.cache->pop(in.use, kBytes, bytes));
  }
  /// One in any other stream.
  bool pop_complete(std::uint64_t bytes = kBytes) {
    bool pending = false;
    return own(caches.pop_complete(context, 1, kBytes, bytes, kNoEpoch, &pending));
  }
  // The block is somebody else's now.
  bool own(CUdeviceptr address) {
    if (address == 0) return false;
    records[address / 0x10000 - 1].write(2);
    return true;
  }
  /// All idle blocks go back to the driver.
  std::size_t take() {
    BlockList taken = caches.take(context, kNoEpoch, StreamCaches::Which::all, ~0ull);
    const std::size_t count = taken.count;
    while (const Block* const block = taken.pop()) own(block->address);
    return count;
  }
  // Behind all threads: what is in the caches, and the room in them.
  std::size_t take_the_rest() {
    const std::uint64_t idle = caches.idle().bytes;
    const std::size_t count = take();
    require(idle == count * kBytes && caches.idle().bytes == 0, "the caches know what they have");
    const StreamCaches::Place last = place(stream_of(9));
    require(caches.allot(last, 2 * kBytes), "room comes back");
    return count;
  }

  struct Life {
    std::uint64_t incarnation() const { return 1; }
  };
  static inline cupool::stats::DeviceStats stats;
  const cupool::engine::Context* const context =
      reinterpret_cast<const cupool::engine::Context*>(1);
  Life life;
  StreamCaches caches;
  std::array<Block, 3> blocks;
  std::array<Data<int>, 3> records;  ///< what only the owner of the block may use
};

// The first free in a stream makes its cache, beside one that goes through all caches.
Program making_a_cache(bool takes) {
  return [=](Threads& run) {
    const auto world = std::make_shared<World>();
    const auto owned = std::make_shared<std::size_t>(0);
    run.thread([=] { require(world->free(0, stream_of(1)), "there is room"); });
    run.thread([=] { *owned = takes ? world->take() : world->pop_complete(); });
    run.after([=] { require(*owned + world->take_the_rest() == 1, "the block has one owner"); });
  };
}

// Two streams make caches at once, of which one is that of a stream that has ended.
Program making_two_caches() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>();
    world->place(stream_of(3));
    for (int step = 0; step < 4; ++step) world->caches.end_decay_step();
    for (std::size_t i = 0; i < 2; ++i) {
      run.thread([=] { require(world->free(i, stream_of(1 + i)), "there is room"); });
    }
    run.after([=] { require(world->take_the_rest() == 2, "no block is lost"); });
  };
}

// A thread allocates in its stream, beside one that does so elsewhere and one that asks what is at
// the address (AsyncBlocks::find()).
Program asking_beside_allocations() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>();
    const auto owners = std::make_shared<int>(0);
    world->free(0, stream_of(1));
    const StreamCaches::Place place = world->place(stream_of(1));
    run.thread([=] { *owners += world->pop(place, kBytes) ? 1 : 0; });
    run.thread([=] { *owners += world->pop_complete(kBytes) ? 1 : 0; });
    run.thread([=] {
      if (world->blocks[0].state.load() != BlockState::live) return;
      require(world->blocks[0].requested == kBytes, "what is live has its owner's size");
    });
    run.after(
        [=] { require(*owners == 1 && world->take_the_rest() == 0, "the block has one owner"); });
  };
}

// A stream ends, or its cache that was empty for long, beside one that knows the cache: its frees
// and allocations must not go to the next stream's.
Program freeing_beside_an_end(bool of_the_stream) {
  return [=](Threads& run) {
    const auto world = std::make_shared<World>();
    const StreamCaches::Place known = world->place(stream_of(1));
    if (of_the_stream) {
      world->free(0, stream_of(1));
    } else {
      world->caches.allot(known, kBytes);
      for (int step = 0; step < 3; ++step) world->caches.end_decay_step();
    }
    const auto kept = std::make_shared<std::size_t>(of_the_stream ? 1 : 0);
    run.thread([=] { *kept += world->free(1, stream_of(1), &known) ? 1 : 0; });
    run.thread([=] {
      if (of_the_stream) {
        world->caches.stream_ends(stream_of(1));
      } else {
        world->caches.end_decay_step();
      }
      const StreamCaches::Place next = world->place(stream_of(2));
      require(!world->pop(next), "a stream has nothing of another one's");
    });
    run.after([=] { require(world->take_the_rest() == *kept, "no block is lost"); });
  };
}

// The program destroys a stream in which another thread has freed (AsyncMemory::stream_ends()). The
// next stream with its handle has nothing of it.
Program destroying_beside_a_free() {
  struct State : World {
    std::atomic<bool> told{false};
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    run.thread([=] {
      require(state->free(0, stream_of(1)), "there is room");
      state->told.store(true, std::memory_order_release);
    });
    run.thread([=] {
      if (!state->told.load(std::memory_order_acquire)) return;
      if (state->caches.any()) state->caches.stream_ends(stream_of(1));
      require(!state->pop(state->place(stream_of(1))), "a stream has nothing of another one's");
    });
    run.after([=] { require(state->take_the_rest() == 1, "no block is lost"); });
  };
}

// The program destroys a stream that has nothing left to do, beside a thread that wants its memory.
Program destroying_a_stream_that_is_done() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>();
    const auto owners = std::make_shared<int>(0);
    world->free(0, stream_of(1));
    run.thread([=] {
      world->caches.stream_ends(stream_of(1), [](CUstream) { return CUDA_SUCCESS; });
      *owners += world->pop_complete() ? 1 : 0;
    });
    run.thread([=] { *owners += world->pop_complete() ? 1 : 0; });
    run.after([=] { require(*owners == 1, "the block has one owner"); });
  };
}

// Two frees where there is room for one.
Program freeing_at_the_limit() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>(kBytes);
    for (std::size_t i = 0; i < 2; ++i) {
      const StreamCaches::Place known = world->place(stream_of(1 + i));
      run.thread([=] { world->free(i, stream_of(1 + i), &known); });
    }
    run.after([=] {
      require(world->caches.idle().bytes <= kBytes, "the caches keep their limit");
      world->caches.set_limit(2 * kBytes);
      world->take_the_rest();
    });
  };
}

void expect_right(const Program& program) {
  const Result result = explore(program);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete) << result.executions << " executions";
}

TEST(Explorer, CachesOfStreams) {
  const std::vector<Program> programs = {making_a_cache(false), making_a_cache(true),
                                         making_two_caches(), asking_beside_allocations(),
                                         destroying_beside_a_free()};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "stream_caches.cpp"), std::vector<std::string>{});
  EXPECT_EQ(unneeded_orders(programs, "stream_caches.h"), std::vector<std::string>{});
  // Of a block's state only that of an allocation: the rest is that of the claim (parts_test.cpp).
  for (const std::string& unneeded : unneeded_orders(programs, "block.h")) {
    EXPECT_EQ(unneeded.find("store release"), std::string::npos) << unneeded;
  }
  // Here the locks order all.
  for (const bool of_the_stream : {true, false}) expect_right(freeing_beside_an_end(of_the_stream));
  expect_right(freeing_at_the_limit());
  expect_right(destroying_a_stream_that_is_done());
}

}  // namespace
}  // namespace explorer
