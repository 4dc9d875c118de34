// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory that lies idle goes back once its stream has nothing left to do, whatever
// other streams do (contract 4, 5, 9, I1).
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/reclaim/calls_under_way.h"
#include "engine_async_idle_fixture.h"

namespace cupool::engine {
namespace {

using AsyncDoneStreamsTest = AsyncIdleTest;

TEST_F(AsyncDoneStreamsTest, AStreamThatHasNothingLeftGivesItsMemoryBack) {  // I1
  gpu.work.store(Work::held);
  const CUdeviceptr address = leave_idle(kUnit);
  idle_driver.is_stream_done = [](CUstream) { return CUDA_SUCCESS; };
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, kUnit);
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
}

// Its work may have come after the question.
TEST_F(AsyncDoneStreamsTest, WhatIsFreedWhileAStreamIsAskedStays) {  // I1
  gpu.work.store(Work::held);
  CUdeviceptr address = 0;
  CUdeviceptr later = 0;
  // Freed once before, so that the cache has room, and a free takes no other lock.
  for (const auto served : {AsyncMemory::Served::by_driver, AsyncMemory::Served::from_cache}) {
    ASSERT_EQ(allocate_in_stream(kUnit, &address), served);
    ASSERT_EQ(allocate_in_stream(2 * kUnit, &later), served);
    ASSERT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
    if (served == AsyncMemory::Served::from_cache) break;
    ASSERT_EQ(async().try_free(later, stream_), CUDA_SUCCESS);
  }
  idle_driver.is_stream_done = [&](CUstream) {
    EXPECT_EQ(async().try_free(later, stream_), CUDA_SUCCESS);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, kUnit);
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
  EXPECT_NE(test::pools->pool_of(later), nullptr);
}

// Only the context's fences cover a stream that is gone.
TEST_F(AsyncDoneStreamsTest, NoStreamIsAskedOfMemoryThatIsNoStreams) {
  gpu.work.store(Work::held);
  const CUdeviceptr address = leave_idle(kUnit);
  int asked = 0;
  idle_driver.is_stream_done = [&](CUstream) {
    return ++asked == 1 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
  };
  async().stream_ends(stream_);
  EXPECT_EQ(asked, 1) << "while it lives";
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
  EXPECT_EQ(asked, 1);
  EXPECT_NE(test::pools->pool_of(address), nullptr);
}

TEST_F(AsyncDoneStreamsTest, MemoryOfOneThatEndsWithNothingLeftIsAnyStreams) {  // I1
  gpu.work.store(Work::held);
  const CUdeviceptr address = leave_idle(kUnit);
  idle_driver.is_stream_done = [](CUstream) { return CUDA_SUCCESS; };
  async().stream_ends(stream_);
  CUdeviceptr again = 0;
  EXPECT_EQ(allocate_in_stream(kUnit, &again), AsyncMemory::Served::from_cache);
  EXPECT_EQ(again, address);
}

// The end of the stream is the last chance to ask.
TEST_F(AsyncDoneStreamsTest, AsIsThatOfOneWhoseAnswerIsRefusedOnce) {  // contract 4
  gpu.work.store(Work::held);
  int refusals = 1;
  idle_driver.is_stream_done = [&](CUstream) {
    return refusals-- > 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  };
  for (const bool is_known : {true, false}) {
    leave_idle(kUnit);
    async().stream_ends(stream_);
    EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, is_known ? kUnit : 0u);
    refusals = 2;
  }
}

TEST_F(AsyncDoneStreamsTest, ButNotBesideACaptureOrACallThatSubmitsWork) {  // contract 9, I1
  gpu.work.store(Work::held);
  int asked = 0;
  idle_driver.is_stream_done = [&](CUstream) {
    ++asked;
    return CUDA_SUCCESS;
  };
  leave_idle(kUnit);
  {
    const CallsUnderWay::Call call;
    async().stream_ends(stream_);
  }
  leave_idle(kUnit);
  Serving::capture_begins();
  async().stream_ends(stream_);
  Serving::captures_end(1);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
}

TEST_F(AsyncDoneStreamsTest, NoStreamIsAskedWhileAnyCaptures) {  // contract 9
  gpu.work.store(Work::held);
  leave_idle(kUnit);
  int asked = 0;
  idle_driver.is_stream_done = [&](CUstream) {
    ++asked;
    return CUDA_SUCCESS;
  };
  // A capture that begins once the memory was looked for.
  bool captures = false;
  idle_driver.at_query = [&] {
    if (!std::exchange(captures, true)) Serving::capture_begins();
  };
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
  EXPECT_EQ(asked, 0);
  ASSERT_TRUE(captures);
  Serving::captures_end(1);
}

// Decay gives back what was idle for long, and no more, of such a stream, too.
TEST_F(AsyncDoneStreamsTest, DecayGivesBackOfAStreamThatHasNothingLeft) {
  gpu.work.store(Work::held);
  Decay decay = make_decay();
  const CUdeviceptr address = leave_idle(kUnit);
  idle_driver.is_stream_done = [](CUstream) { return CUDA_SUCCESS; };
  for (unsigned step = 0; step < StreamCaches::kDecaySteps; ++step) {
    EXPECT_NE(test::pools->pool_of(address), nullptr);
    look(decay);
  }
  look(decay);
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
}

// The GPU may have begun with the work before the call that submits it returns.
TEST_F(AsyncDoneStreamsTest, NoStreamIsAskedBesideACallThatSubmitsWork) {  // I1
  gpu.work.store(Work::held);
  leave_idle(kUnit);
  idle_driver.is_stream_done = [](CUstream) { return CUDA_SUCCESS; };
  {
    const CallsUnderWay::Call call;
    EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
  }
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, kUnit);
}

// Whoever destroys a stream, or begins a capture, waits until the question is answered.
TEST_F(AsyncDoneStreamsTest, AStreamIsAskedWhileItLivesAndDoesNotCapture) {
  const auto is_let_in_beside_a_query = [&](const auto& call) {
    gpu.work.store(Work::held);
    leave_idle(kUnit);
    std::atomic<bool> begun{false};
    std::atomic<bool> done{false};
    bool seen = false;
    std::thread other;
    idle_driver.is_stream_done = [&](CUstream) {
      other = std::thread([&] {
        begun = true;
        call();
        done = true;
      });
      while (!begun) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      seen = done;
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, kUnit);
    other.join();
    EXPECT_TRUE(done);
    idle_driver.is_stream_done = nullptr;
    gpu.finish();
    return seen;
  };
  EXPECT_FALSE(is_let_in_beside_a_query([&] { async().stream_ends(stream_); }));
  EXPECT_FALSE(is_let_in_beside_a_query(
      [&] { context_->ordering().captures().begin(stream_, [] { return CUDA_ERROR_UNKNOWN; }); }));
}

// Without patience left, or where that attempt is refused, the call still gets all that is idle.
TEST_F(AsyncDoneStreamsTest, AnEarlyAttemptIsNotTheLast) {  // contract 4
  for (const bool has_patience : {false, true}) {
    free(allocate(kUnit));
    context_->threads().drain(Drain::all);
    idle().settle(*context_, AsyncIdle::Look::for_a_moment);
    ASSERT_NE(context_->cache().bytes(), 0u);
    leave_idle(kUnit);
    Patience patience(has_patience ? 20'000'000 : 0);
    patience.wants(kUnit);
    int early = 0;
    const auto real = [&] {
      if (context_->cache().bytes() == 0) return CUDA_SUCCESS;
      ++early;
      while (!patience.over()) std::this_thread::yield();
      return CUDA_ERROR_OUT_OF_MEMORY;
    };
    EXPECT_EQ(allocator_->out_of_memory().retry(real, patience), CUDA_SUCCESS);
    EXPECT_EQ(early, has_patience ? 1 : 0);
  }
}

// What is given back meanwhile ends no wait for what the program has freed.
TEST_F(AsyncDoneStreamsTest, TheWaitForFreedMemoryGoesOn) {
  gpu.work.store(Work::held);
  leave_idle(kUnit);
  const CUdeviceptr address = allocate(kUnit);
  free(address);
  idle_driver.is_stream_done = [](CUstream) { return CUDA_SUCCESS; };
  std::thread gpu_thread([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gpu.finish();
  });
  Patience patience(10'000'000'000);
  EXPECT_TRUE(allocator_->out_of_memory().give_back_idle(*context_, patience));
  gpu_thread.join();
  EXPECT_EQ(now(Gauge::retired_bytes), 0);
  EXPECT_EQ(test::pools->reserved(), 0u);
}

}  // namespace
}  // namespace cupool::engine
