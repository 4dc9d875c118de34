// SPDX-License-Identifier: Apache-2.0
// The program's stream-ordered memory, served from caches, on the fake driver (contract 12, I1).
#include "engine/serve/async_memory.h"

#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "engine/reclaim/dependent_launches.h"
#include "engine_async_fixture.h"

namespace cupool::engine {
namespace {

TEST_F(AsyncMemoryTest, NoDependentLaunchOverlapsOnceThereIsABlock) {  // I1
  cuda::LaunchAttribute attribute{};
  attribute.id = cuda::kProgrammaticStreamSerialization;
  cuda::LaunchConfiguration configuration{};
  configuration.stream = stream_;
  configuration.attributes = &attribute;
  configuration.attribute_count = 1;
  const auto is_serialised = [&] {
    const DependentLaunch launch(*driver_, &configuration, stream_, false);
    return launch.configuration() != &configuration;
  };
  EXPECT_FALSE(is_serialised());
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &address), AsyncMemory::Served::by_driver);
  EXPECT_TRUE(is_serialised()) << "it may be handed out again behind any kernel";
  EXPECT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
}

// In the order of its own context's streams alone.
TEST_F(AsyncMemoryTest, ABlockGoesIntoNoCacheOfAnotherContext) {  // I1
  const CUstream others = reinterpret_cast<CUstream>(0x7000);
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &address), AsyncMemory::Served::by_driver);
  ASSERT_NE(enter(reinterpret_cast<CUcontext>(0x99000)), context_);
  const auto free_of_others = [&] { return async().try_free(address, others); };
  EXPECT_EQ(free_of_others(), std::nullopt) << "that has no cache yet";
  CUdeviceptr own = 0;
  ASSERT_EQ(async().allocate(&own, kUnit, nullptr, others, allocate_by_driver(&own, others)),
            AsyncMemory::Served::by_driver);
  ASSERT_EQ(async().try_free(own, others), CUDA_SUCCESS);
  ASSERT_EQ(async().try_allocate(kUnit, nullptr, others), own);
  EXPECT_EQ(free_of_others(), std::nullopt) << "though there is room";
  ASSERT_EQ(enter(nullptr), context_);
  EXPECT_EQ(async().try_free(address, stream_), CUDA_SUCCESS) << "it is live";
}

// By the driver's count: all that it handed out, less what the program has, each request rounded.
TEST_F(AsyncMemoryTest, TheSumOfWhatIsUnusedFollowsEveryCall) {  // contract 12
  std::minstd_rand random(7);
  std::map<CUdeviceptr, std::uint64_t> live;
  std::uint64_t used = 0;
  CUmemoryPool pool = nullptr;
  test::fake::default_pool(&pool, 0);
  const auto rounded = [](std::uint64_t bytes) { return (bytes + 511) / 512 * 512; };
  std::size_t served = 0;
  for (int step = 0; step < 3000; ++step) {
    const auto stream = reinterpret_cast<CUstream>(std::uintptr_t{0x5000} + random() % 4);
    if (random() % 2 == 0 && live.size() < 40) {
      const std::uint64_t bytes = 1 + random() % (kUnit / 4);
      CUdeviceptr address = 0;
      const AsyncMemory::Served by =
          async().allocate(&address, bytes, nullptr, stream, allocate_by_driver(&address, stream));
      ASSERT_NE(by, AsyncMemory::Served::no);
      served += by == AsyncMemory::Served::from_cache ? 1 : 0;
      live[address] = bytes;
      used += rounded(bytes);
    } else if (!live.empty()) {
      const auto chosen = std::next(live.begin(), random() % live.size());
      const CUdeviceptr address = chosen->first;
      const std::uint64_t bytes = chosen->second;
      const auto by_driver = [&] {
        return async().free_by_driver(address, [] { return CUDA_SUCCESS; });
      };
      if (random() % 8 == 0 || async().try_free(address, stream) != CUDA_SUCCESS) {
        ASSERT_EQ(by_driver(), CUDA_SUCCESS);
      }
      live.erase(address);
      used -= rounded(bytes);
    }
    if (step % 97 == 0) async().stream_ends(stream);
    ASSERT_EQ(async().unused_bytes(pool), async().blocks().bytes() - used) << "step " << step;
  }
  EXPECT_GT(served, 300u);
}

// What a stream has freed stays no stream's once it has ended. The null stream never ends.
TEST_F(AsyncMemoryTest, TheEndOfTheNullStreamConcernsNoBlock) {
  gpu.work.store(Work::held);
  const CUdeviceptr address = leave_idle(kUnit);
  async().stream_ends(stream_);
  async().stream_ends(nullptr);
  CUdeviceptr again = 0;
  EXPECT_EQ(allocate_in_stream(kUnit, &again), AsyncMemory::Served::by_driver) << "not yet";
  gpu.work.store(Work::none);
  EXPECT_EQ(allocate_in_stream(kUnit, &again), AsyncMemory::Served::from_cache);
  EXPECT_EQ(again, address);
}

// A context that is about to end keeps visitors out for as long as that takes.
TEST_F(AsyncMemoryTest, StoppingWaitsForNoContextWithoutIdleMemory) {
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &address), AsyncMemory::Served::by_driver);
  const ContextEnd ends(*context_);
  const std::uint64_t start = util::now_ns();
  async().stop();
  EXPECT_LT(util::now_ns() - start, kLongestWaitForOthersNs);
}

// The end may take as long as the context's work, which may wait for what this thread does next.
TEST_F(AsyncMemoryTest, NoCallWaitsForTheEndOfAnotherContext) {  // I8
  Context* const ending = enter(reinterpret_cast<CUcontext>(0x99000));
  ASSERT_NE(ending, context_);
  leave_idle(kMany);
  ASSERT_EQ(enter(nullptr), context_);
  std::optional<ContextEnd> ends(std::in_place, *ending);
  std::atomic<bool> done{false};
  std::thread caller([&] {
    allocator_->out_of_memory().trim_if_unclear();
    CUmemoryPool pool = nullptr;
    test::fake::default_pool(&pool, 0);
    async().give_back_of(pool);
    done = true;
  });
  const std::uint64_t start = util::now_ns();
  while (!done && util::now_ns() - start < 5 * kLongestWaitForOthersNs) std::this_thread::yield();
  EXPECT_TRUE(done);
  ends.reset();
  caller.join();
  allocator_->out_of_memory().trim_if_unclear();
  EXPECT_EQ(async().idle().bytes(context_->device()), 0u) << "once it has not ended";
}

// For the driver they are in use: no figure of a pool tells of them.
TEST_F(AsyncMemoryTest, IdleBlocksHurryDecayOnADeviceThatIsNearlyFull) {
  Decay decay = make_decay();
  const std::uint64_t capacity = gpu.capacity.exchange(test::FakePools::kStep * 2 + kUnit);
  EXPECT_FALSE(decay.is_urgent());
  leave_idle(kMany);
  EXPECT_TRUE(decay.is_urgent());
  gpu.capacity.store(capacity);
  EXPECT_FALSE(decay.is_urgent()) << "there is room";
}

// The pool's mark of what was in use contains them until they are released.
TEST_F(AsyncMemoryTest, TheKeptPoolGivesBackWhatDecayReleasesAtThatLook) {
  CUdeviceptr live = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &live), AsyncMemory::Served::by_driver);
  allocator_->default_pools().allocated(nullptr);
  DefaultPool& pool = context_->device().default_pool();
  ASSERT_TRUE(pool.is_kept());
  leave_idle(kMany);
  const std::uint64_t reserved = test::pools->reserved();
  Decay decay = make_decay();
  for (std::size_t i = 0; i < BlockCache::kDecaySteps; ++i) {
    EXPECT_EQ(test::pools->reserved(), reserved) << "it may be needed again";
    look(decay);
  }
  look(decay);
  EXPECT_LE(test::pools->reserved(), test::FakePools::kStep);
  cuuint64_t high = 0;
  EXPECT_EQ(pool.get_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high), CUDA_SUCCESS);
  EXPECT_GE(high, kMany + kUnit) << "the program's own mark is not reset";
  // What the program needs after that counts as before.
  CUdeviceptr next = 0;
  ASSERT_EQ(allocate_in_stream(kMany, &next), AsyncMemory::Served::by_driver);
  look(decay);
  EXPECT_GE(test::pools->reserved(), kMany + kUnit);
}

}  // namespace
}  // namespace cupool::engine
