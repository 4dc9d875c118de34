// SPDX-License-Identifier: Apache-2.0
// Calls of the engine that the driver, a capture or the engine's own state refuses: what the
// program is told, and that nothing is lost (contracts 3 and 4, I7).
#include <gtest/gtest.h>

#include "engine/ipc/wire.h"
#include "engine/serve/decay.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

struct ServeAnswers {
  CUresult free = CUDA_SUCCESS;
  CUresult query = CUDA_SUCCESS;
  CUresult current = CUDA_SUCCESS;
  CUresult info = CUDA_SUCCESS;
  bool has_context = true;
};
ServeAnswers answers_of_driver;

class ServeRefusalTest : public PoolEngineTest {
 protected:
  static constexpr std::uint64_t kBlock = 64 << 10;

  void SetUp() override {
    answers_of_driver = ServeAnswers{};
    PoolEngineTest::SetUp();
  }
  void TearDown() override {
    answers_of_driver = ServeAnswers{};
    ContextRegistry::current_may_change();
    PoolEngineTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuMemFree_v2 = [](CUdeviceptr address) {
      return answers_of_driver.free == CUDA_SUCCESS ? test::fake::free(address)
                                                    : answers_of_driver.free;
    };
    driver.cuEventQuery = [](CUevent event) {
      return answers_of_driver.query == CUDA_SUCCESS ? test::fake::query(event)
                                                     : answers_of_driver.query;
    };
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = answers_of_driver.has_context ? test::fake::context() : nullptr;
      return answers_of_driver.current;
    };
    driver.cuMemGetInfo_v2 = [](std::size_t* free_bytes, std::size_t* total_bytes) {
      *total_bytes = gpu.capacity.load();
      *free_bytes = 0;  // nearly full
      return answers_of_driver.info;
    };
    return driver;
  }
  OutOfMemory& out_of_memory() { return allocator_->out_of_memory(); }
  void leave_idle_memory() { free_all(allocate_several(20, kBlock)); }
};

TEST_F(ServeRefusalTest, AFreeThatACaptureOrAHostFunctionForbidsLeavesItsBlock) {  // contract 9
  const CUdeviceptr block = allocate(kBlock);
  Serving::capture_begins();
  for (const CUresult refusal : {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED}) {
    answers_of_driver.free = refusal;
    EXPECT_EQ(allocator_->frees().try_free(block), refusal);
    EXPECT_EQ(now(Gauge::application_bytes), static_cast<std::int64_t>(kBlock));
  }
  answers_of_driver.free = CUDA_SUCCESS;
  Serving::captures_end(1);
  in_thread([&] {
    answers_of_driver.current = CUDA_ERROR_NOT_PERMITTED;
    EXPECT_FALSE(allocator_->frees().try_free_live(block));
    answers_of_driver.current = CUDA_SUCCESS;
  });
  EXPECT_TRUE(allocator_->frees().try_free_live(block));
  EXPECT_FALSE(allocator_->frees().try_free_live(block));
}

// The failure may have kept memory back: the program gets that, and not an out of memory.
TEST_F(ServeRefusalTest, ACallThatMeetsAStickyErrorIsAnsweredByTheDriver) {  // I7
  leave_idle_memory();
  int calls = 0;
  const auto real = [&] {
    if (++calls > 1) return CUDA_ERROR_ILLEGAL_ADDRESS;
    context_->set_poisoned();
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  EXPECT_EQ(out_of_memory().retry(real), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(calls, 2);
}

TEST_F(ServeRefusalTest, ALookForRoomThatMeetsAStickyErrorEndsTheServing) {  // I7
  leave_idle_memory();
  answers_of_driver.info = CUDA_ERROR_ILLEGAL_ADDRESS;
  Patience patience;
  patience.wants(kBlock);
  EXPECT_EQ(out_of_memory().retry_anywhere([] { return CUDA_ERROR_OUT_OF_MEMORY; }, patience),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(context_->usable());
}

TEST_F(ServeRefusalTest, WithoutPatienceACallIsMadeAgainOnce) {  // contract 4
  leave_idle_memory();
  int calls = 0;
  const auto real = [&] {
    ++calls;
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  Patience none(0);
  while (!none.over()) {
  }
  EXPECT_EQ(out_of_memory().retry(real, none), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls, 1) << "after what is complete went back";
  // And a thread inside a context asks no neighbours.
  const ContextVisit visit(*context_);
  const std::uint64_t before = count(Counter::neighbours_asked_total);
  EXPECT_EQ(out_of_memory().retry(real), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(count(Counter::neighbours_asked_total), before);
}

TEST_F(ServeRefusalTest, SteppingAsideMeetsAStickyErrorOnce) {  // I7
  start({{"CUPOOL_BACKEND", "pool"}, {"CUPOOL_FREE_MODE", "auto"}});
  leave_idle_memory();
  const CUdeviceptr live = allocate(kBlock);
  gpu.work.store(Work::held);
  free(live);
  answers_of_driver.query = CUDA_ERROR_LAUNCH_FAILED;
  const std::uint64_t trims = test::pools->trims.load();
  allocator_->step_aside().stop_serving("a test");
  EXPECT_FALSE(context_->usable());
  EXPECT_EQ(test::pools->trims.load(), trims) << "the driver answers everything from then on";
}

TEST_F(ServeRefusalTest, WhatIsNotToBeSharedIsLeftToTheDriver) {  // contract 8
  const CUdeviceptr block = allocate(kBlock);
  EXPECT_EQ(allocator_->sharing().try_export(block, nullptr), std::nullopt);
  CUipcMemHandle handle{};
  EXPECT_EQ(allocator_->sharing().try_export(kForeign, &handle), std::nullopt);
  const CUipcMemHandle ours = ipc::to_driver_type(ipc::Handle{});
  EXPECT_EQ(allocator_->sharing().try_import(ours, nullptr), std::nullopt);
  CUdeviceptr address = 0;
  answers_of_driver.has_context = false;
  ContextRegistry::current_may_change();
  EXPECT_EQ(allocator_->sharing().try_import(ours, &address), CUDA_ERROR_INVALID_CONTEXT);
  answers_of_driver.has_context = true;
  ContextRegistry::current_may_change();
  context_->set_poisoned();
  EXPECT_EQ(allocator_->sharing().try_import(ours, &address), std::nullopt);
}

TEST_F(ServeRefusalTest, TheDefaultPoolIsKeptOnlyWhileTheEngineServes) {  // contract 12
  DefaultPools& pools = allocator_->default_pools();
  allocator_->policy().host_reachable().add(HostReachable::Kind::managed, 0x9000,
                                            {kBlock, context_});
  pools.allocated(nullptr);
  EXPECT_FALSE(context_->device().default_pool().is_kept()) << "managed memory needs its room";
  start({{"CUPOOL_BACKEND", "pool"}});
  allocator_->step_aside().stop_serving("a test");
  allocator_->default_pools().allocated(nullptr);
  EXPECT_FALSE(context_->device().default_pool().is_kept());
}

TEST_F(ServeRefusalTest, AFailedWaitThatIsRepeatedIsCountedOnce) {
  const auto fail = [] { return CUDA_ERROR_UNKNOWN; };
  const auto wait = [&](Synchronization::Failure failure) {
    return allocator_->synchronization().of_context(context_, failure, fail);
  };
  EXPECT_EQ(wait(Synchronization::Failure::repeated), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(count(Counter::synchronize_calls_total), 0u);
  EXPECT_EQ(wait(Synchronization::Failure::counted), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(count(Counter::synchronize_calls_total), 1u);
}

TEST_F(ServeRefusalTest, DecayHurriesOnlyWhereTheDriverSaysThatMemoryIsScarce) {
  free_all(allocate_several(2, 40ull << 20));
  context_->threads().drain(Drain::all);
  EXPECT_TRUE(context_->ordering().wait(context_->ordering().newest()).complete());
  allocator_->idle().cache_reclaimed(*context_);
  Decay decay(*driver_, allocator_->registry(), allocator_->idle(),
              allocator_->default_pools().async().idle());
  answers_of_driver.info = CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(decay.is_urgent());
  answers_of_driver.info = CUDA_SUCCESS;
  EXPECT_TRUE(decay.is_urgent());
  Serving::capture_begins();
  EXPECT_FALSE(decay.is_urgent());
  Serving::captures_end(1);
}

TEST_F(ServeRefusalTest, ALayoutOfNothingTeachesNothing) {
  PointerQueries& queries = allocator_->queries();
  queries.learn_pitch(0, 0);
  EXPECT_EQ(queries.known_layout(100, 1), std::nullopt);
  queries.learn_pitch(100, 512);
  ASSERT_TRUE(queries.known_layout(600, 2));
  EXPECT_EQ(queries.known_layout(600, 2)->pitch, 1024u);
  EXPECT_EQ(queries.known_layout(0, 2), std::nullopt);
  EXPECT_EQ(queries.known_layout(600, 0), std::nullopt);
  EXPECT_EQ(queries.known_layout(~std::uint64_t{0}, 2), std::nullopt);
  queries.learn_pitch(100, 100);
  EXPECT_EQ(queries.known_layout(600, 2), std::nullopt) << "another driver's padding";
}

// Memory that the program has freed by a route that cupool does not see.
class StaleRecordTest : public FastPathTest {};

TEST_F(StaleRecordTest, ABlockTakesTheAddressOfMemoryThatPassedThrough) {
  CUdeviceptr next = gpu.next_address.load();
  Patience patience;
  EXPECT_EQ(allocator_->pass_through().allocate(
                4096, [] { return 4096; }, &next, patience, [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  EXPECT_EQ(now(Gauge::passthrough_bytes), 4096);
  EXPECT_EQ(allocate(4096), next);
  EXPECT_EQ(now(Gauge::passthrough_bytes), 0);
  free(next);
  expect_identity();
}

TEST_F(StaleRecordTest, MemoryThatPassesThroughTakesTheAddressOfABlock) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the old record is left to whoever may hold it: here nobody, and so it leaks";
#endif
  CUdeviceptr block = allocate(4096);
  Patience patience;
  EXPECT_EQ(allocator_->pass_through().allocate(
                4096, [] { return 4096; }, &block, patience, [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  EXPECT_EQ(now(Gauge::passthrough_bytes), 4096);
  EXPECT_EQ(allocator_->frees().try_free(block), std::nullopt) << "the driver's";
}

}  // namespace
}  // namespace cupool::engine
