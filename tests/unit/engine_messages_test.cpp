// SPDX-License-Identifier: Apache-2.0
// Calls of MPI wait for the work before frees that did not (contract 8): whose, for how long, and
// what happens where the driver does not let them.
#include "engine/serve/messages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>

#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

class MessagesTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kBlock = 64 << 10;
  static inline CUresult asked = CUDA_SUCCESS;  // of a fence, by query or wait
  static inline CUresult freed = CUDA_SUCCESS;  // of the driver's free
  static inline int frees = 0;                  // of the driver
  static inline CUcontext current = nullptr;    // null: the fake driver's

  void SetUp() override {
    asked = freed = CUDA_SUCCESS;
    frees = 0;
    current = nullptr;
    MessageCalls::reset();
    FastPathTest::SetUp();
    start({{"CUPOOL_FREE_MODE", "auto"}});
    allocator_->policy().let_see(FreePolicy::Others::by_messages);
  }
  void TearDown() override {
    asked = freed = CUDA_SUCCESS;
    enter(nullptr);
    gpu.work.store(Work::none);
    FastPathTest::TearDown();
    MessageCalls::reset();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver();
    driver.cuEventQuery = [](CUevent event) {
      return asked == CUDA_SUCCESS ? test::fake::query(event) : asked;
    };
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = current == nullptr ? test::fake::context() : current;
      return CUDA_SUCCESS;
    };
    driver.cuMemFree_v2 = [](CUdeviceptr) {
      ++frees;
      return freed;
    };
    return driver;
  }
  Messages& messages() { return allocator_->synchronization().messages(); }
  Context* enter(CUcontext context) {
    current = context;
    ContextRegistry::current_may_change();
    return allocator_->registry().current();
  }
  // A free behind work that is still pending.
  void free_behind_work() {
    const CUdeviceptr address = allocate(kBlock);
    gpu.work.store(Work::held);
    free(address);
    EXPECT_EQ(count(Counter::free_waits_total), 0u);
  }
  std::uint64_t waits() { return count(Counter::message_waits_total); }
  EpochNumber complete() { return context_->ordering().epochs().complete_up_to(); }
};

// Whose end may take as long as its work, which may wait for the message.
TEST_F(MessagesTest, ACallWaitsForNoEndOfAContext) {  // I8
  constexpr std::uint64_t kLimitNs = 10'000'000;
  free_behind_work();
  auto ending = std::make_unique<ContextEnd>(*context_);
  auto waiting = std::async(std::launch::async,
                            [&] { return Messages::wait(allocator_->registry(), kLimitNs); });
  const bool held_up = waiting.wait_for(std::chrono::seconds(5)) != std::future_status::ready;
  ending.reset();
  EXPECT_FALSE(held_up);
  gpu.work.store(Work::none);
  EXPECT_FALSE(waiting.get()) << "nor is that work complete";
  EXPECT_TRUE(Messages::wait(allocator_->registry(), kLimitNs));
}

TEST_F(MessagesTest, ACallWaitsOnceForTheFreesBeforeIt) {
  messages().before_call();
  EXPECT_EQ(waits(), 0u) << "nothing was freed";
  free_behind_work();
  const EpochNumber left = context_->ordering().epochs().unwaited();
  EXPECT_NE(left, kNoEpoch);
  messages().before_call();
  EXPECT_GE(complete(), left);
  EXPECT_EQ(waits(), 1u);
  messages().before_call();
  messages().before_completion();
  EXPECT_EQ(waits(), 1u);
}

TEST_F(MessagesTest, ACompletionWaitsForTheFreesOfItsThreadAlone) {
  in_thread([&] { free_behind_work(); });
  messages().before_completion();
  EXPECT_EQ(waits(), 0u);
  gpu.work.store(Work::none);
  messages().before_call();
  EXPECT_GE(complete(), context_->ordering().epochs().unwaited());
  free_behind_work();
  messages().before_completion();
  EXPECT_EQ(waits(), 1u);
  EXPECT_FALSE(MessageCalls::own().any);
}

TEST_F(MessagesTest, AThreadWithFreesInTooManyContextsWaitsForAllFrees) {
  in_thread([&] { free_behind_work(); });
  MessageCalls::own().any = MessageCalls::own().more = true;
  messages().before_completion();
  EXPECT_GE(complete(), context_->ordering().epochs().unwaited());
}

TEST_F(MessagesTest, AFailedContextHoldsNoMessageUp) {  // I7
  free_behind_work();
  context_->set_poisoned();
  messages().before_call();
  EXPECT_EQ(waits(), 0u);
  EXPECT_FALSE(MessageCalls::own().any);
}

// Nor is anything taken for complete: the next call tries again.
TEST_F(MessagesTest, WhereTheDriverRefusesEveryWaitTheNextCallTriesAgain) {
  free_behind_work();
  asked = CUDA_ERROR_UNKNOWN;
  gpu.capacity.store(0);  // nor is there memory for a barrier
  messages().before_call();
  EXPECT_TRUE(MessageCalls::own().any);
  EXPECT_FALSE(MessageCalls::are_settled(MessageCalls::frees()));
  EXPECT_TRUE(allocator_->policy().knows_of_others());
  EXPECT_EQ(allocator_->policy().mode(), config::FreeMode::automatic) << "no time has passed";
  asked = CUDA_SUCCESS;
  messages().before_call();
  EXPECT_FALSE(MessageCalls::own().any);
}

TEST_F(MessagesTest, AWaitForAllIsBounded) {
  free_behind_work();
  EXPECT_FALSE(Messages::wait(allocator_->registry(), 3'000'000));
  EXPECT_FALSE(MessageCalls::are_settled(MessageCalls::frees()));
  gpu.finish();
  EXPECT_TRUE(Messages::wait(allocator_->registry(), 3'000'000));
  EXPECT_TRUE(MessageCalls::are_settled(MessageCalls::frees()));
}

TEST_F(MessagesTest, WhatIsCoveredIsWaitedForByTheNextCall) {
  context_->ordering().epochs().join(0, 1);
  gpu.takes_ns.store(2'000'000);
  gpu.work.store(Work::timed);
  Messages::cover(allocator_->registry());
  const EpochNumber covered = context_->ordering().epochs().unwaited();
  messages().before_call();
  EXPECT_GE(complete(), covered);
}

// The thread has gone on in another context, which the one with its frees may not outlive.
TEST_F(MessagesTest, FreesInAnotherContextAreWaitedForAsLongAsTheyTake) {
  gpu.takes_ns.store(100 * kOneVisitNs);
  const CUdeviceptr address = allocate(kBlock);
  gpu.work.store(Work::timed);
  free(address);
  const EpochNumber left = context_->ordering().epochs().unwaited();
  ASSERT_LT(complete(), left);
  ASSERT_NE(enter(reinterpret_cast<CUcontext>(0x99000)), context_);
  messages().before_completion();
  EXPECT_GE(complete(), left);
  EXPECT_FALSE(MessageCalls::own().any);
}

TEST_F(MessagesTest, TheLatestOfItsFreesCounts) {
  free_behind_work();
  const EpochNumber first = context_->ordering().epochs().unwaited();
  in_thread([&] { free_behind_work(); });
  const EpochNumber second = context_->ordering().epochs().unwaited();
  ASSERT_LT(first, second);
  // Of frees in more contexts than it has room for, it waits for all.
  MessageCalls::own().more = true;
  messages().before_completion();
  EXPECT_GE(complete(), second);
}

// The wait of the driver's free would end the capture.
TEST_F(MessagesTest, WhereACaptureForbidsTheWaitACallGoesOn) {  // contract 9
  context_->ordering().epochs().join(0, 1);
  gpu.work.store(Work::held);
  Serving::capture_begins();
  Messages::cover(allocator_->registry());
  freed = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  EXPECT_FALSE(Messages::wait(allocator_->registry(), 1'000'000'000));
  EXPECT_LE(frees, 2) << "it is not tried again and again";
  Serving::captures_end(1);
  freed = CUDA_SUCCESS;
  gpu.work.store(Work::none);
  EXPECT_TRUE(Messages::wait(allocator_->registry(), 1'000'000'000));
}

// Memory was short, or a capture under way, when the block was freed.
TEST_F(MessagesTest, AFreeWithoutAFenceWaitsItself) {
  const CUdeviceptr address = allocate(kBlock);
  gpu.work.store(Work::held);
  static bool refuses = false;
  refuses = true;
  driver_->cuCtxRecordEvent = [](CUcontext context, CUevent event) {
    return refuses ? CUDA_ERROR_UNKNOWN : test::fake::record(context, event);
  };
  EXPECT_EQ(allocator_->frees().try_free(address), CUDA_SUCCESS);
  refuses = false;
  EXPECT_EQ(context_->ordering().epochs().unwaited(), kNoEpoch) << "nothing is left";
  EXPECT_FALSE(MessageCalls::own().any);
  EXPECT_EQ(now(Gauge::retired_bytes), 0) << "the GPU has left it";
}

}  // namespace
}  // namespace cupool::engine
