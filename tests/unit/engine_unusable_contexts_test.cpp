// SPDX-License-Identifier: Apache-2.0
// Calls of the engine without a context, in one that has failed (I7), and in one that has ended
// while the call was on its way (I8): the driver answers, and nothing is asked of it for cupool.
#include <gtest/gtest.h>

#include "engine/serve/decay.h"
#include "engine/serve/messages.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

class UnusableContextTest : public PoolEngineTest {
 protected:
  static constexpr std::uint64_t kBlock = 64 << 10;
  static inline bool has_context = true;

  void SetUp() override {
    has_context = true;
    PoolEngineTest::SetUp();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = has_context ? test::fake::context() : nullptr;
      return CUDA_SUCCESS;
    };
    driver.cuCtxPushCurrent_v2 = [](CUcontext) {
      has_context = true;
      return CUDA_SUCCESS;
    };
    driver.cuCtxPopCurrent_v2 = [](CUcontext*) {
      has_context = false;
      return CUDA_SUCCESS;
    };
    driver.cuStreamDestroy_v2 = [](CUstream) { return CUDA_SUCCESS; };
    return driver;
  }
  // What a call for memory does that the driver refuses.
  CUresult refuse() {
    ++asked_;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  OutOfMemory& out_of_memory() { return allocator_->out_of_memory(); }
  // What was asked of the driver that concerns memory or work.
  std::uint64_t calls() const {
    return gpu.frees.load() + gpu.recorded.load() + gpu.queries.load() + test::pools->trims.load();
  }
  // An idle block and a retired one, of this thread.
  void leave_memory() {
    free_all(allocate_several(20, kBlock));
    ASSERT_GT(now(Gauge::held_bytes), 0);
  }
  int asked_ = 0;
};

class NoContextTest : public UnusableContextTest {
 protected:
  void SetUp() override {
    UnusableContextTest::SetUp();
    leave_memory();
    has_context = false;
    ContextRegistry::current_may_change();
  }
  void TearDown() override {
    has_context = true;
    ContextRegistry::current_may_change();
    UnusableContextTest::TearDown();
  }
};

TEST_F(NoContextTest, ACallThatRanOutOfMemoryIsNotRepeated) {
  Patience patience;
  EXPECT_EQ(out_of_memory().retry([&] { return refuse(); }), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(out_of_memory().retry_stream([&] { return refuse(); }), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked_, 0) << "nor after the end of a spare stream";
  EXPECT_TRUE(OutOfMemory::may_fit(allocator_->registry().current(), ~std::uint64_t{0}))
      << "nobody knows";
  out_of_memory().trim_if_unclear();
}

// Of a pool or a stream, whose device is not known: those are asked that have contexts.
TEST_F(NoContextTest, MemoryOfAnyDeviceIsGivenBackForAPool) {
  Patience patience;
  const std::uint64_t before = test::pools->trims.load();
  EXPECT_EQ(out_of_memory().retry_anywhere(
                [&] {
                  ++asked_;
                  return CUDA_SUCCESS;
                },
                patience),
            CUDA_SUCCESS);
  EXPECT_EQ(asked_, 1);
  EXPECT_GT(test::pools->trims.load(), before);
}

TEST_F(NoContextTest, FiguresAreThoseOfNoDevice) {
  const std::uint64_t before = stats::device(-1).value(Counter::free_null_total);
  allocator_->figures().count_null_free();
  EXPECT_EQ(stats::device(-1).value(Counter::free_null_total), before + 1);
  EXPECT_EQ(allocator_->figures().idle_bytes(), 0u);
}

TEST_F(NoContextTest, NoMemoryIsServedOrShared) {
  Patience patience;
  CUdeviceptr address = 0;
  EXPECT_EQ(allocator_->allocations().try_allocate(kBlock, &address, patience), std::nullopt);
  CUipcMemHandle handle{};
  EXPECT_EQ(allocator_->sharing().try_import(handle, &address), std::nullopt) << "not cupool's";
  EXPECT_EQ(allocator_->queries().known_layout(100, 100), std::nullopt);
  allocator_->queries().learn_pitch(100, 512);
  EXPECT_FALSE(allocator_->default_pools().are_concerned(nullptr));
  allocator_->default_pools().allocated(nullptr);
  allocator_->pass_through().managed_allocated(0x9000, kBlock);
  EXPECT_TRUE(allocator_->policy().host_reachable().any(HostReachable::Kind::managed));
}

TEST_F(NoContextTest, AWaitIsTheDriversAlone) {
  const auto fail = [] { return CUDA_ERROR_INVALID_CONTEXT; };
  EXPECT_EQ(
      allocator_->synchronization().of_context(nullptr, Synchronization::Failure::counted, fail),
      CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(allocator_->synchronization().of_stream(CU_STREAM_LEGACY, fail),
            CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(NoContextTest, MemoryPassesThroughUncounted) {
  Patience patience;
  CUdeviceptr address = 0x9000;
  const auto allocate = [&] { return CUDA_SUCCESS; };
  EXPECT_EQ(allocator_->pass_through().allocate(
                kBlock, [] { return kBlock; }, &address, patience, allocate),
            CUDA_SUCCESS);
  EXPECT_EQ(allocator_->blocks().find(address), nullptr);
  EXPECT_EQ(allocator_->pass_through().allocate(
                kBlock, [] { return kBlock; }, nullptr, patience, allocate),
            CUDA_SUCCESS);
  EXPECT_EQ(allocator_->pass_through().free(address, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
}

class FailedContextTest : public UnusableContextTest {
 protected:
  void SetUp() override {
    UnusableContextTest::SetUp();
    leave_memory();
    live_ = allocate(kBlock);
    context_->set_poisoned();
    before_ = calls();
  }
  void expect_nothing_asked() { EXPECT_EQ(calls(), before_); }
  CUdeviceptr live_ = 0;
  std::uint64_t before_ = 0;
};

TEST_F(FailedContextTest, NothingIsGivenBack) {  // I7
  Patience patience;
  EXPECT_FALSE(out_of_memory().give_back_idle(*context_, patience));
  EXPECT_EQ(out_of_memory().retry([&] { return refuse(); }), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked_, 1) << "once more, for the error of the context";
  EXPECT_EQ(out_of_memory().retry_on(0, [&] { return refuse(); }), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked_, 2);
  EXPECT_EQ(out_of_memory().retry_stream([&] { return refuse(); }), CUDA_ERROR_OUT_OF_MEMORY);
  out_of_memory().make_spare_streams(*context_);
  EXPECT_EQ(out_of_memory().give_to_neighbour(context_->device().id(), 0), 0u);
  Decay decay(*driver_, allocator_->registry(), allocator_->idle(),
              allocator_->default_pools().async().idle());
  EXPECT_FALSE(decay.go_on());
  EXPECT_FALSE(decay.is_urgent());
  allocator_->step_aside().stop_serving("a test");
  expect_nothing_asked();
}

TEST_F(FailedContextTest, NothingIsServedOrShared) {  // I7
  Patience patience;
  CUdeviceptr address = 0;
  EXPECT_EQ(allocator_->allocations().try_allocate(kBlock, &address, patience), std::nullopt);
  EXPECT_FALSE(allocator_->allocations().try_allocate_cached(*context_, kBlock, &address));
  CUipcMemHandle handle{};
  EXPECT_EQ(allocator_->sharing().try_export(live_, &handle), std::nullopt);
  EXPECT_FALSE(allocator_->preparation().preallocate_some());
  EXPECT_TRUE(allocator_->preparation().start_some_pools());
  allocator_->default_pools().allocated(nullptr);
  EXPECT_FALSE(context_->device().default_pool().is_kept());
  allocator_->pass_through().managed_allocated(0x9000, kBlock);
  Messages::cover(allocator_->registry());
  EXPECT_TRUE(Messages::wait(allocator_->registry(), 1));
  expect_nothing_asked();
}

TEST_F(FailedContextTest, FreesAreTheDriversToAnswer) {  // I7
  const std::uint64_t frees = gpu.frees.load();
  EXPECT_EQ(allocator_->frees().try_free(live_), CUDA_SUCCESS);
  EXPECT_EQ(gpu.frees.load(), frees + 1) << "asked about this block";
  // And during a capture.
  Serving::capture_begins();
  const auto in_stream = [](CUdeviceptr, CUstream) { return CUDA_ERROR_UNKNOWN; };
  EXPECT_EQ(allocator_->frees().refuse_in_stream(live_, in_stream, nullptr), std::nullopt);
  EXPECT_EQ(allocator_->frees().try_free(live_), CUDA_SUCCESS);
  Serving::captures_end(1);
  EXPECT_EQ(gpu.frees.load(), frees + 2) << "no spare block is freed for it";
}

// Another thread has ended the context since this one found it.
class GoneContextTest : public UnusableContextTest {
 protected:
  void SetUp() override {
    UnusableContextTest::SetUp();
    leave_memory();
    context_->set_gone_untouched();
    before_ = calls();
  }
  std::uint64_t before_ = 0;
};

TEST_F(GoneContextTest, NobodyIsLetIn) {  // I8
  const ContextVisit visit(*context_);
  EXPECT_FALSE(visit);
}

TEST_F(GoneContextTest, NothingIsTakenFromIt) {  // I8
  CUdeviceptr address = 0;
  EXPECT_FALSE(allocator_->allocations().try_allocate_cached(*context_, kBlock, &address));
  allocator_->idle().cache_reclaimed(*context_);
  Patience patience(0);
  EXPECT_FALSE(out_of_memory().give_back_idle(*context_, patience));
  out_of_memory().make_spare_streams(*context_);
  Messages::cover(allocator_->registry());
  EXPECT_TRUE(Messages::wait(allocator_->registry(), 1));
  EXPECT_EQ(calls(), before_);
}

}  // namespace
}  // namespace cupool::engine
