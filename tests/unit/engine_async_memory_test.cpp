// SPDX-License-Identifier: Apache-2.0
// The program's stream-ordered memory, served from caches, on the fake driver (contract 12, I1).
#include "engine/serve/async_memory.h"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "engine/reclaim/dependent_launches.h"
#include "engine/serve/decay.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

class AsyncMemoryTest : public PoolEngineTest {
 protected:
  static constexpr std::uint64_t kMany = 48 * (kUnit / 2);  ///< more than a growth step
  static inline std::atomic<CUcontext> current{nullptr};    ///< null: the fake driver's

  static inline thread_local CUcontext pushed = nullptr;

  void SetUp() override {
    PoolEngineTest::SetUp();
    start({{"CUPOOL_ASYNC", "serve"}});
  }
  void TearDown() override {
    PoolEngineTest::TearDown();
    DependentLaunch::reset();
    enter(nullptr);
    start({});  // serves none
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      const CUcontext set = pushed != nullptr ? pushed : current.load();
      *context = set != nullptr ? set : test::fake::context();
      return CUDA_SUCCESS;
    };
    driver.cuCtxPushCurrent_v2 = [](CUcontext context) {
      pushed = context;
      return CUDA_SUCCESS;
    };
    driver.cuCtxPopCurrent_v2 = [](CUcontext* context) {
      *context = std::exchange(pushed, nullptr);
      return CUDA_SUCCESS;
    };
    driver.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = current != nullptr ? current.load() : test::fake::context();
      return CUDA_SUCCESS;
    };
    driver.cuStreamGetFlags = [](CUstream, unsigned* flags) {
      *flags = CU_STREAM_NON_BLOCKING;
      return CUDA_SUCCESS;
    };
    return driver;
  }
  AsyncMemory& async() { return allocator_->default_pools().async(); }
  AsyncMemory::Served allocate_in_stream(std::uint64_t bytes, CUdeviceptr* address) {
    return async().allocate(address, bytes, nullptr, stream_, [&](std::uint64_t wanted) {
      CUmemoryPool pool = nullptr;
      test::fake::default_pool(&pool, 0);
      return test::fake::allocate_from_pool(address, wanted, pool, stream_);
    });
  }

  Context* enter(CUcontext context) {
    current = context;
    ContextRegistry::current_may_change();
    return allocator_->registry().current();
  }
  void leave_idle(std::uint64_t bytes) {
    CUdeviceptr address = 0;
    ASSERT_EQ(allocate_in_stream(bytes, &address), AsyncMemory::Served::by_driver);
    ASSERT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
    ASSERT_GE(async().idle().bytes(context_->device()), bytes);
  }
  Decay make_decay() {
    return Decay(*driver_, allocator_->registry(), allocator_->idle(), async().idle());
  }
  // A look of the background thread (process/housekeeping).
  void look(Decay& decay) {
    while (async().idle().give_back_unneeded()) {
    }
    async().idle().end_decay_step();
    while (decay.go_on()) {
    }
  }

  const CUstream stream_ = reinterpret_cast<CUstream>(0x5000);
};

TEST_F(AsyncMemoryTest, NoDependentLaunchOverlapsOnceThereIsABlock) {  // I1
  cuda::LaunchAttribute attribute{};
  attribute.id = cuda::kProgrammaticStreamSerialization;
  cuda::LaunchConfiguration configuration{};
  configuration.stream = stream_;
  configuration.attributes = &attribute;
  configuration.attribute_count = 1;
  const auto is_serialised = [&] {
    const DependentLaunch launch(*driver_, &configuration, stream_);
    return launch.configuration() != &configuration;
  };
  EXPECT_FALSE(is_serialised());
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &address), AsyncMemory::Served::by_driver);
  EXPECT_TRUE(is_serialised()) << "it may be handed out again behind any kernel";
  EXPECT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
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
