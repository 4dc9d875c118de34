// SPDX-License-Identifier: Apache-2.0
// What a thread holds of a context, in every interleaving with those who take it away: batches that
// are handed over to the ordering, caches that are parked, and caches that go from a thread which
// has ended to the next one. The GPU is one queue; each of its events is complete when asked.

// Used as they are.
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "stats/device_stats.h"
#include "stats/stall.h"
#include "stats/thread_figures.h"
#include "util/log.h"

namespace cupool::log {

// Nothing is written.
std::atomic<int> detail::threshold{0};
void write(Level, const char*, ...) noexcept {}

}  // namespace cupool::log

#include "explored_atomic.h"

// The parts themselves, with the explorer's atomics.
// NOLINTBEGIN(bugprone-suspicious-include)
#include "engine/block/block_cache.cpp"
#include "engine/context/context_threads.h"
#include "engine/reclaim/barriers.cpp"
#include "engine/reclaim/captures.cpp"
#include "engine/reclaim/closed_epochs.cpp"
#include "engine/reclaim/epochs.cpp"
#include "engine/reclaim/ordering.cpp"
#include "engine/thread/idle_lists.cpp"
#include "engine/thread/tally.cpp"
#include "engine/thread/thread_cache.cpp"
#include "engine/thread/thread_cache_stock.cpp"
// NOLINTEND(bugprone-suspicious-include)

namespace explorer {
namespace {

using cupool::cuda::Driver;
using cupool::engine::Block;
using cupool::engine::BlockCache;
using cupool::engine::BlockList;
using cupool::engine::ContextThreads;
using cupool::engine::Drain;
using cupool::engine::EpochNumber;
using cupool::engine::Epochs;
using cupool::engine::Ordering;
using cupool::engine::ThreadCache;
using cupool::engine::ThreadCacheStock;

void expect_right(const Program& program) {
  const Result result = explore(program);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete) << result.executions << " executions";
}

constexpr std::uint64_t kBytes = 2ull << 20;

// A context with two blocks, as far as its threads' caches go.
struct World {
  World() {
    now = this;
    for (Block& block : blocks) block.capacity = kBytes;
  }
  ~World() {
    for (ThreadCache* cache : taken) delete cache;
  }

  ThreadCache* take() {
    ThreadCache* const cache = threads.caches().take();
    if (std::find(taken.begin(), taken.end(), cache) == taken.end()) taken.push_back(cache);
    cache->limits.cached = 1ull << 30;
    return cache;
  }

  // The program's use of a block, its last work on the GPU included.
  void use(std::size_t index) {
    uses[index].write(1);
    last_work[index] = queue.fetch_add(1, std::memory_order_acq_rel) + 1;
  }
  // A free whose batch is full.
  void free(std::size_t index, ThreadCache& cache) {
    {
      const ThreadCache::Guard guard(cache);
      cache.retire(&blocks[index]);
      cache.flush(ordering.epochs());
    }
    ordering.close(Ordering::IfBusy::skip);
  }
  void reclaim(ThreadCache& cache) {
    BlockList surplus;
    const ThreadCache::Guard guard(cache);
    cache.reclaim(ordering.epochs().complete_up_to(), false, &surplus,
                  [](const Block&) { return false; });
    require(surplus.empty(), "there is room in the cache");
  }
  Block* pop(ThreadCache& cache) {
    const ThreadCache::Guard guard(cache);
    return cache.idle.pop(kBytes);
  }
  // The block belongs to somebody else now.
  void reuse(const Block* block) {
    const auto index = static_cast<std::size_t>(block - blocks.data());
    require(complete >= last_work[index], "a block is reused once the GPU has ended its work");
    require(!reused[index], "a block has one owner");
    reused[index] = true;
    uses[index].write(2);
  }
  void reuse(BlockList list) {
    while (const Block* block = list.pop()) reuse(block);
  }
  // Takes over what the threads hold and reuses what is complete.
  void take_away(Drain what) {
    threads.drain(what);
    BlockList reclaimed;
    ordering.poll(Ordering::Poll::all, &reclaimed);
    reuse(reclaimed);
    while (const Block* block = shared.pop(kBytes)) reuse(block);
  }
  // Everything that is left, by one thread behind all others.
  void take_the_rest() {
    take_away(Drain::all);
    require(ordering.epochs().pending_bytes() == 0, "what is complete is pending no more");
  }

  // --- the driver ---

  static CUresult create(CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(++now->events);
    return CUDA_SUCCESS;
  }
  static CUresult record(CUcontext, CUevent event) {
    now->recorded[event] = now->queue.fetch_add(0, std::memory_order_acq_rel);
    return CUDA_SUCCESS;
  }
  // The last use of a block by the GPU, as far as the host may know.
  static CUresult query(CUevent event) {
    const int up_to = now->recorded[event];
    for (std::size_t i = 0; i < now->uses.size(); ++i) {
      if (now->last_work[i] > now->complete && now->last_work[i] <= up_to) now->uses[i].write(3);
    }
    now->complete = std::max(now->complete, up_to);
    return CUDA_SUCCESS;
  }
  static CUresult current(CUcontext* context) {
    *context = nullptr;
    return CUDA_SUCCESS;
  }
  static Driver make_driver() {
    Driver made;
    made.cuEventCreate = create;
    made.cuCtxRecordEvent = record;
    made.cuEventQuery = query;
    made.cuCtxGetCurrent = current;
    return made;
  }

  static inline World* now = nullptr;
  static inline const Driver driver = make_driver();
  static inline cupool::stats::DeviceStats stats;

  std::atomic<int> queue{0};
  std::map<CUevent, int> recorded;
  std::uintptr_t events = 0;
  int complete = 0;

  std::array<Block, 2> blocks;
  std::array<Data<int>, 2> uses;
  std::array<int, 2> last_work{};
  std::array<bool, 2> reused{};

  Ordering ordering{driver, nullptr, stats};
  BlockCache shared;
  ContextThreads threads{ordering, shared, stats};
  std::vector<ThreadCache*> taken;
};

// --- batches that are handed over ---

// A thread frees, and reuses its own blocks, beside one that takes them away.
Program freeing_beside_a_drain(Drain what) {
  return [=](Threads& run) {
    const auto world = std::make_shared<World>();
    ThreadCache* const cache = world->take();
    run.thread([=] {
      world->use(0);
      world->free(0, *cache);
      world->reclaim(*cache);
      if (const Block* const block = world->pop(*cache)) world->reuse(block);
    });
    run.thread([=] { world->take_away(what); });
    run.after([=] {
      world->take_the_rest();
      require(world->reused[0], "no block is lost");
    });
  };
}

TEST(Explorer, HandedOverBatches) {
  for (const Drain what : {Drain::retired, Drain::all}) expect_right(freeing_beside_a_drain(what));
}

// --- caches that are parked, and caches of threads that have ended ---

// Caches of which somebody has to see all that is new, and what is in them as a plain variable.
struct Stock {
  ~Stock() {
    for (ThreadCache* cache : taken) delete cache;
  }
  ThreadCache* take() {
    ThreadCache* const cache = caches.take();
    if (std::find(taken.begin(), taken.end(), cache) == taken.end()) taken.push_back(cache);
    return cache;
  }
  // A thread's call with its own cache.
  void free(ThreadCache& cache) {
    const ThreadCache::Guard guard(cache);
    add_to(cache, 1);
  }
  // The same on the hot path.
  bool try_free(ThreadCache& cache) {
    if (!cache.try_lock()) return false;
    add_to(cache, 1);
    cache.unlock();
    return true;
  }
  // Folds what is new, and parks what has nothing.
  void fold() {
    caches.for_each_active([this](ThreadCache& cache) { add_to(cache, -1); });
  }
  // The same for all caches.
  void fold_all() {
    caches.for_each([this](ThreadCache& cache) { add_to(cache, -1); });
  }
  void add_to(ThreadCache& cache, int change) {
    Data<int>& contents = inside[static_cast<std::size_t>(
        std::find(taken.begin(), taken.end(), &cache) - taken.begin())];
    const int before = contents.read();
    contents.write(change > 0 ? before + 1 : 0);
    folded += change > 0 ? 0 : before;
    cache.tally.frees = change > 0 ? cache.tally.frees + 1 : 0;
  }

  ThreadCacheStock caches;
  std::vector<ThreadCache*> taken;
  std::array<Data<int>, 3> inside;
  int folded = 0;
};

// What a thread frees before a fold, as far as the folding thread knows, is folded by it.
Program freeing_beside_a_fold(int frees, bool starts_parked) {
  struct State : Stock {
    std::atomic<int> told{0};
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    ThreadCache* const cache = state->take();
    if (starts_parked) state->fold();
    run.thread([=] {
      for (int i = 1; i <= frees; ++i) {
        state->free(*cache);
        state->told.store(i, std::memory_order_release);
      }
    });
    run.thread([=] {
      const int told = state->told.load(std::memory_order_acquire);
      state->fold();
      require(state->folded >= told, "a fold sees what was freed before");
    });
    run.after([=] {
      state->fold();
      require(state->folded == frees, "nothing is lost");
    });
  };
}

// The hot path, beside two threads that fold; one of them visits what is parked, too.
Program trying_beside_folds() {
  struct State : Stock {
    int tried = 0;
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    ThreadCache* const cache = state->take();
    run.thread([=] {
      for (int i = 0; i < 2; ++i) state->tried += state->try_free(*cache) ? 1 : 0;
    });
    run.thread([=] { state->fold(); });
    run.thread([=] { state->fold_all(); });
    run.after([=] {
      state->fold();
      require(state->folded == state->tried, "nothing is lost");
    });
  };
}

// A thread ends, and another one begins, which may get its cache.
Program ending_beside_a_beginning(bool starts_parked) {
  return [=](Threads& run) {
    const auto state = std::make_shared<Stock>();
    ThreadCache* const ending = state->take();
    if (starts_parked) state->fold();
    run.thread([=] {
      if (!starts_parked) state->free(*ending);
      state->caches.put_back(ending, false);
    });
    run.thread([=] {
      ThreadCache* const begun = state->take();
      state->free(*begun);
    });
    run.thread([=] { state->fold(); });
    run.after([=] {
      state->fold_all();
      require(state->folded == (starts_parked ? 1 : 2), "nothing is lost");
      require(state->caches.in_use() == 1, "one thread has a cache");
    });
  };
}

TEST(Explorer, ParkedCaches) {
  const std::vector<Program> programs = {
      freeing_beside_a_fold(2, false), freeing_beside_a_fold(1, true), trying_beside_folds(),
      ending_beside_a_beginning(false), ending_beside_a_beginning(true)};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "thread_cache.h"), std::vector<std::string>{});
  EXPECT_EQ(unneeded_orders(programs, "shared_mutex.h"), std::vector<std::string>{});
}

}  // namespace
}  // namespace explorer
