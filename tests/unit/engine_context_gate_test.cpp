// SPDX-License-Identifier: Apache-2.0
// The end of a context beside other threads (contract 10 and 11, I8): who is inside is waited for,
// who comes waits until it is decided, and nothing of the old life is in the new one.
#include "engine/context/context_visit.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "engine/serve/retire.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint64_t kMomentNs = 5'000'000;

// As the driver would for one thread more.
class ContextGateTest : public FastPathTest {
 protected:
  template <typename Ends>
  void end(const Ends& ends) {
    allocator_->endings().end(
        context_, [] { return CUDA_SUCCESS; }, [&](CUresult) { return ends(); });
  }
  void end() {
    end([] { return true; });
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }
};

TEST_F(ContextGateTest, TheEndWaitsForWhoeverIsInside) {
  std::atomic<bool> ended{false};
  std::thread other;
  {
    const ContextVisit visit(*context_);
    ASSERT_TRUE(visit);
    other = std::thread([&] {
      end();
      ended = true;
    });
    while (!context_->gate().is_closed()) std::this_thread::yield();
    pause();
    EXPECT_FALSE(ended);
    const ContextVisit nested(*context_);
    EXPECT_TRUE(nested) << "the thread is inside already";
  }
  other.join();
  EXPECT_TRUE(context_->gone());
  EXPECT_FALSE(ContextVisit(*context_));
}

TEST_F(ContextGateTest, WhoComesMeanwhileWaitsForTheDecision) {
  for (const bool ends : {false, true}) {
    std::atomic<int> inside{-1};
    std::thread other;
    end([&] {
      other = std::thread([&] { inside = ContextVisit(*context_) ? 1 : 0; });
      pause();
      EXPECT_EQ(inside, -1);
      in_thread([&] { EXPECT_FALSE(ContextVisit(*context_, kMomentNs)) << "not for ever"; });
      return ends;
    });
    other.join();
    EXPECT_EQ(inside, ends ? 0 : 1);
    EXPECT_EQ(context_->gone(), ends);
  }
}

// The end of the process waits for background threads, and a kernel may hold up an end for ever.
TEST_F(ContextGateTest, ABackgroundThreadWaitsAtNoGate) {
  end([&] {
    in_thread([&] {
      {
        const VisitsWithoutWait at_once;
        EXPECT_FALSE(ContextVisit(*context_));
        EXPECT_FALSE(ContextVisit::any_of_this_thread());
      }
      EXPECT_FALSE(ContextVisit(*context_, kMomentNs)) << "as before";
    });
    return false;
  });
  const VisitsWithoutWait at_once;
  const ContextVisit visit(*context_);
  EXPECT_TRUE(visit);
  EXPECT_TRUE(ContextVisit(*context_)) << "nested";
  EXPECT_TRUE(ContextVisit::any_of_this_thread());
}

// Else two threads, each inside one and waiting at the other's gate, would keep both from ending.
TEST_F(ContextGateTest, NobodyWaitsAtAGateWhoIsInsideAnotherOne) {
  Context second(*driver_, reinterpret_cast<CUcontext>(~std::uintptr_t{0}), context_->device());
  const ContextVisit visit(*context_);
  EXPECT_TRUE(ContextVisit(second));
  std::thread other([&] {
    const ContextEnd ending(second);
    EXPECT_TRUE(ending.alone());
    in_thread([&] {
      const ContextVisit first(*context_);
      EXPECT_FALSE(ContextVisit(second));
    });
  });
  other.join();
}

// A signal handler that interrupted a visit may call exit().
TEST_F(ContextGateTest, AThreadThatIsInsideCanEndTheContextItself) {
  const ContextVisit visit(*context_);
  end();
  EXPECT_TRUE(context_->gone());
}

// The driver gives the handle to the next context as soon as it has ended the last one.
TEST_F(ContextGateTest, AHandleThatComesAgainIsTheNewContextsAlone) {
  free_all(allocate_several(100, kBlockBytes));
  std::thread other;
  std::atomic<bool> found{false};
  std::atomic<std::uint64_t> incarnation{0};
  in_thread([&] { allocator_->registry().current(); });
  end([&] {
    other = std::thread([&] {
      ContextRegistry::current_may_change();
      incarnation = allocator_->registry().current()->incarnation();
      found = true;
    });
    pause();
    EXPECT_FALSE(found) << "it may be the old one";
    return true;
  });
  other.join();
  EXPECT_EQ(incarnation, 2u);
  EXPECT_FALSE(context_->gone());
  EXPECT_EQ(now(Gauge::held_bytes), 0);
}

// What the driver gives out of an ended context's memory may be there before the end is noted.
TEST_F(ContextGateTest, ARecordOfTheEndedContextThatIsReplacedIsCountedWithIt) {
  const CUdeviceptr address = allocate(kBlockBytes);
  Context second(*driver_, reinterpret_cast<CUcontext>(~std::uintptr_t{0}), context_->device());
  PointerMap map;
  Block old_block;
  Block new_block;
  old_block.address = new_block.address = address;
  old_block.context = context_;
  new_block.context = &second;
  add_block(map, &old_block);
  {
    const ContextEnd ending(*context_);
    EXPECT_EQ(add_block(map, &new_block), nullptr);
    EXPECT_EQ(map.find(address), &new_block);
    LeftBlocks gone = map.extract([&](const Block& block) { return block.context == context_; });
    EXPECT_EQ(gone.pop(), &old_block);
    EXPECT_TRUE(gone.empty());
  }
  EXPECT_EQ(add_block(map, &old_block), &new_block) << "freed behind our back, in a living context";
  free(address);
}

// Whatever was found out about the old one: events of it that were recorded, that none can be.
TEST_F(ContextGateTest, ANewLifeRecordsAndReusesNoEventOfTheOldOne) {
  static std::atomic<bool> refuses{false};
  driver_->cuCtxRecordEvent = [](CUcontext context, CUevent event) {
    return refuses ? CUDA_ERROR_UNKNOWN : test::fake::record(context, event);
  };
  gpu.work.store(Work::held);
  pairs(100, kBlockBytes);
  Ordering& ordering = context_->ordering();
  const EpochNumber newest = ordering.newest();
  ASSERT_NE(newest, kNoEpoch);
  std::thread waiting([&] { ordering.wait(newest, 200'000'000); });
  pause();
  refuses = true;
  pairs(1000, kBlockBytes);
  refuses = false;
  const auto* const newest_old = test::fake::newest_event.load();
  allocator_->endings().context_gone(*context_);
  gpu.finish();
  waiting.join();
  context_ = allocator_->registry().current();
  const std::uint64_t fences = gpu.recorded.load();
  pairs(1000, kBlockBytes);
  EXPECT_GT(gpu.recorded.load(), fences) << "fences again";
  EXPECT_NE(test::fake::newest_event.load(), newest_old) << "by events of its own";
  expect_identity();
}

// A thread that ends while its context ends: what it had is the context's.
TEST_F(ContextGateTest, AThreadMayEndBesideItsContext) {
  for (int life = 0; life < 20; ++life) {
    std::atomic<bool> used{false};
    std::thread other([&] {
      context_ = allocator_->registry().current();
      free_all(allocate_several(100, kBlockBytes));
      used = true;
    });
    while (!used) std::this_thread::yield();
    if (life % 2 == 1) pause();
    end();
    other.join();
    EXPECT_EQ(context_->threads().caches().in_use(), 0u) << "its cache can be another thread's";
    context_ = allocator_->registry().current();
    EXPECT_EQ(now(Gauge::held_bytes), 0);
    expect_identity();
  }
}

// CUDA forbids the end of a context beside a free of its memory. Here the context ends, lives
// again, and has given the block's record to another block by the time the free goes on.
class EndBesideAFreeTest : public ContextGateTest {
 protected:
  static inline std::function<void()> meanwhile;
  static inline int looks_at_stream = 0;  ///< so many before `meanwhile`
  static inline const CUstream kStream = reinterpret_cast<CUstream>(0x70000);

  static void do_meanwhile() {
    if (const auto call = std::exchange(meanwhile, nullptr)) std::thread(call).join();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = ContextGateTest::make_driver();
    driver.cuEventSynchronize = [](CUevent event) {
      do_meanwhile();
      return test::fake::wait(event);
    };
    driver.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      if (--looks_at_stream == 0) do_meanwhile();
      *context = test::fake::context();
      return CUDA_SUCCESS;
    };
    return driver;
  }
  void SetUp() override {
    ContextGateTest::SetUp();
    start({{"CUPOOL_FREE_MODE", "auto"}});
    freed_ = allocate(kBlockBytes);
    record_ = allocator_->blocks().find(freed_);
    meanwhile = [this] {
      end();
      ASSERT_EQ(allocator_->registry().current(), context_);
      next_ = allocate(kBlockBytes);
      ASSERT_EQ(allocator_->blocks().find(next_), record_);
    };
  }
  void expect_nothing_touched() {
    ASSERT_NE(next_, 0u) << "the free was done before";
    EXPECT_EQ(record_->state.load(), BlockState::live);
    gpu.work.store(Work::none);
    BlockList reclaimed = drained();
    EXPECT_TRUE(reclaimed.empty());
    const std::vector<CUdeviceptr> others = allocate_several(100, kBlockBytes);
    for (const CUdeviceptr address : others) {
      ASSERT_NE(address, next_) << "it is live";
      ASSERT_NE(address, freed_) << "it went with its context";
    }
    free(next_);
    free_all(others);
    expect_nothing_live();
  }
  BlockList drained() {
    context_->threads().drain(Drain::all);
    BlockList reclaimed;
    EXPECT_EQ(context_->ordering().poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
    return reclaimed;
  }
  // The free has counted its block, though the end had taken it for retired.
  void expect_nothing_live() {
    const ContextVisit visit(*context_);
    BlockList reclaimed = drained();
    allocator_->idle().cache_or_release(*context_, reclaimed);
    EXPECT_EQ(now(Gauge::application_bytes), 0);
    EXPECT_EQ(now(Gauge::rounding_bytes), 0);
    EXPECT_EQ(now(Gauge::device_bytes), 0);
    EXPECT_EQ(now(Gauge::retired_bytes), 0);
    expect_identity();
    EXPECT_EQ(count(Counter::free_calls_total), count(Counter::malloc_calls_total));
  }

  CUdeviceptr freed_ = 0;
  CUdeviceptr next_ = 0;
  const Block* record_ = nullptr;
};

TEST_F(EndBesideAFreeTest, AFreeThatWaitsLeavesTheNextLifeAlone) {  // contract 10
  gpu.work.store(Work::held);
  context_->host_work().submitted(kStream);
  free(freed_);
  expect_nothing_touched();
}

TEST_F(EndBesideAFreeTest, AStreamOrderedFreeLeavesTheNextLifeAlone) {  // contract 10
  looks_at_stream = 2;  // the second one comes when the block is claimed
  EXPECT_EQ(allocator_->frees().try_free_in_stream(freed_, kStream), CUDA_SUCCESS);
  expect_nothing_touched();
}

// Nor does a look-up from the earlier life claim the record while it is nobody's.
TEST(DeletedBlock, IsNotClaimedByWhoHasLookedItUpBefore) {
  Block* const block = new_block();
  block->state.store(BlockState::live);
  const std::uint64_t seen = block->state.word();
  delete_block(block);
  EXPECT_FALSE(block->state.claim(seen));
  Block* const next = new_block();
  ASSERT_EQ(next, block);
  EXPECT_NE(next->state.load(), BlockState::live);
  delete_block(next);
}

// The figures move a block to the cached ones when it is cached, not when its fence is complete.
TEST_F(ContextGateTest, BlocksOfCompleteEpochsAreLostAsFreedOnes) {
  free_all(allocate_several(10, kBlockBytes));
  context_->threads().drain(Drain::all);
  context_->ordering().end_synchronize(context_->ordering().begin_synchronize());
  ASSERT_TRUE(context_->ordering().epochs().holds_blocks()) << "complete, and not yet cached";
  end();
  EXPECT_EQ(now(Gauge::retired_bytes), 0);
  EXPECT_EQ(now(Gauge::cached_bytes), 0);
  EXPECT_EQ(now(Gauge::held_bytes), 0);
}

// What a thread does not do costs nobody anything.
TEST_F(ContextGateTest, OnlyCachesWithSomethingNewAreVisited) {
  constexpr int kThreads = 50;
  std::atomic<int> ready{0};
  std::atomic<int> rounds{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2; ++round) {
        while (rounds < round) std::this_thread::yield();
        pairs(10, kBlockBytes);
        ++ready;
      }
      while (rounds < 2) std::this_thread::yield();
    });
  }
  const auto visited = [&] {
    int visits = 0;
    context_->threads().caches().for_each_active([&](ThreadCache& cache) {
      cache.tally.fold(context_->stats());
      cache.flush(context_->ordering().epochs());
      ++visits;
    });
    return visits;
  };
  while (ready < kThreads) std::this_thread::yield();
  EXPECT_EQ(visited(), kThreads);
  EXPECT_EQ(visited(), 0);
  rounds = 1;  // they take their caches back
  while (ready < 2 * kThreads) std::this_thread::yield();
  EXPECT_EQ(visited(), kThreads);
  EXPECT_EQ(visited(), 0);
  context_->threads().drain(Drain::all);  // reaches the others all the same
  BlockList reclaimed;
  context_->ordering().poll(Ordering::Poll::all, &reclaimed);
  EXPECT_GT(context_->cache().bytes() + reclaimed.bytes, 0u);
  context_->cache().cache(reclaimed);
  rounds = 2;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(context_->threads().caches().in_use(), 0u);
  EXPECT_EQ(count(Counter::malloc_calls_total), 2u * kThreads * 10);
}

// Each would make the program's synchronisation of the context slower.
TEST_F(ContextGateTest, ManyThreadsShareAFewStreams) {
  StreamStock stock;
  const auto destroy = [](CUstream) { ADD_FAILURE(); };
  std::uintptr_t created = 0;
  const auto create = [&](CUstream* stream) {
    *stream = reinterpret_cast<CUstream>(++created);
    return CUDA_SUCCESS;
  };
  std::map<CUstream, int> users;
  for (int thread = 0; thread < 100; ++thread) {
    CUstream stream = nullptr;
    EXPECT_EQ(stock.take(create, destroy, &stream), CUDA_SUCCESS);
    ++users[stream];
  }
  EXPECT_EQ(created, StreamStock::kStreams);
  for (const auto& user : users) EXPECT_EQ(user.second, 25);
  stock.clear();
  for (int thread = 0; thread < 100; ++thread) {  // one after the other
    CUstream one = nullptr;
    EXPECT_EQ(stock.take(create, destroy, &one), CUDA_SUCCESS);
    stock.put_back(one);
  }
  EXPECT_EQ(created, StreamStock::kStreams + 1) << "a thread that ends leaves its own to the next";
  stock.clear();  // with the context
  CUstream stream = nullptr;
  EXPECT_EQ(stock.take([](CUstream*) { return CUDA_ERROR_OUT_OF_MEMORY; }, destroy, &stream),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(stock.take(create, destroy, &stream), CUDA_SUCCESS);
  EXPECT_EQ(created, StreamStock::kStreams + 2);
}

TEST_F(ContextGateTest, EachStreamHasOneSpareThatIsNeverUsed) {
  StreamStock stock;
  const auto destroy = [](CUstream) { ADD_FAILURE(); };
  std::uintptr_t created = 0;
  std::uintptr_t room = 100;
  const auto create = [&](CUstream* stream) {
    if (created == room) return CUDA_ERROR_OUT_OF_MEMORY;
    *stream = reinterpret_cast<CUstream>(++created);
    return CUDA_SUCCESS;
  };
  stock.make_spares(create);
  EXPECT_EQ(created, 0u) << "no stream, no spare";
  CUstream first = nullptr;
  CUstream second = nullptr;
  stock.take(create, destroy, &first);
  stock.take(create, destroy, &second);
  room = 3;
  for (int i = 0; i < 2; ++i) stock.make_spares(create);
  EXPECT_EQ(created, 3u) << "refused: tried again by the next call";
  room = 100;
  for (int i = 0; i < 2; ++i) stock.make_spares(create);
  EXPECT_EQ(created, 4u);
  const StreamStock::Streams all = stock.all();
  EXPECT_EQ(std::vector<CUstream>(all.begin(), all.end()), (std::vector<CUstream>{first, second}));
  EXPECT_NE(stock.take_spare(), nullptr);
  EXPECT_NE(stock.take_spare(), nullptr);
  EXPECT_EQ(stock.take_spare(), nullptr);
  stock.make_spares(create);
  EXPECT_EQ(created, 4u) << "what the program got is not replaced";
  stock.clear();  // with the context
  stock.take(create, destroy, &first);
  stock.make_spares(create);
  EXPECT_EQ(created, 6u);
  stock.clear();
  EXPECT_EQ(stock.take_spare(), nullptr);
}

// More contexts than one part of the thread's table holds.
TEST_F(ContextGateTest, AThreadKeepsTheCachesOfManyContexts) {
  in_thread([&] {
    std::vector<Context*> contexts;
    std::vector<ThreadCache*> caches;
    for (std::uintptr_t i = 1; i <= 40; ++i) {
      contexts.push_back(  // as all contexts, for ever
          new Context(*driver_, reinterpret_cast<CUcontext>(~i), context_->device()));
      caches.push_back(thread_cache(*contexts.back()));
    }
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      EXPECT_EQ(thread_cache(*contexts[i]), caches[i]);
      EXPECT_EQ(contexts[i]->threads().caches().in_use(), 1u);
    }
    static auto* const reachable = new std::vector<Context*>;
    reachable->insert(reachable->end(), contexts.begin(), contexts.end());
  });
}

}  // namespace
}  // namespace cupool::engine
