// SPDX-License-Identifier: Apache-2.0
// Ordering and captures, the rule I3: no fence and no synchronisation while one is under way, and
// the barriers that a wait has instead.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "engine_ordering_fixture.h"

namespace cupool::engine {
namespace {

// A thread on its way into the driver's synchronisation, and a capture that begins meanwhile.
struct CaptureRace {
  std::atomic<bool> decided{false};  ///< to synchronise, and holds no lock any more
  std::atomic<bool> capturing{false};
  std::atomic<bool> invalidated{false};
};

class OrderingCaptureTest : public OrderingTest {
 protected:
  static inline CaptureRace race;

  template <typename Condition>
  static bool await(const Condition& condition, std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  static CUresult slow_exchange(CUstreamCaptureMode*) {
    if (race.decided.exchange(true)) return CUDA_SUCCESS;
    await([] { return race.capturing.load(); }, std::chrono::milliseconds(10));
    return CUDA_SUCCESS;
  }
  static CUresult synchronize_unless_capturing() {
    race.invalidated = race.capturing.load();
    return race.invalidated ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  }
  static CUresult synchronize_until_capturing() {
    race.decided = true;
    const bool begun = await([] { return race.capturing.load(); }, std::chrono::seconds(20));
    return begun ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  }

  OrderingCaptureTest() { race.decided = race.capturing = race.invalidated = false; }

  // Another thread waits for the epoch of a free of `block`; once it has decided to synchronise, a
  // capture begins.
  void begin_capture_during_a_wait(Ordering& ordering, Block& block) {
    const EpochNumber epoch = retire(ordering, block);
    auto waits = std::async(std::launch::async, [&] { return ordering.wait(epoch); });
    ASSERT_TRUE(await([] { return race.decided.load(); }, std::chrono::seconds(20)));
    const auto begin = [] {
      race.capturing = true;
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(ordering.captures().begin(reinterpret_cast<CUstream>(0x20), begin), CUDA_SUCCESS);
    EXPECT_TRUE(waits.get().complete());
  }
};

TEST_F(OrderingCaptureTest, NoFenceIsRecordedDuringACapture) {  // I3
  Ordering ordering(driver_, kContext, stats_);
  CUstream stream = reinterpret_cast<CUstream>(0x20);
  ASSERT_EQ(ordering.captures().begin(stream, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_TRUE(ordering.captures().has(stream));
  gpu.calls.clear();
  Block block;
  retire(ordering, block);
  EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
  BlockList reclaimed;
  EXPECT_EQ(ordering.poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
  EXPECT_TRUE(gpu.calls.empty());
  EXPECT_FALSE(is_reclaimed(ordering, block));
  // The end of the capture that the driver refuses does not end it.
  ordering.captures().end(
      stream, [] { return CUDA_ERROR_INVALID_VALUE; }, [] { return true; });
  EXPECT_TRUE(ordering.captures().has(stream));
  ordering.captures().end(
      stream, [] { return CUDA_SUCCESS; }, [] { return false; });
  EXPECT_TRUE(ordering.wait(ordering.newest()).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"}));
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

TEST_F(OrderingCaptureTest, AWaitDuringACaptureUsesTheDriversFreeAsABarrier) {  // I3
  Ordering ordering(driver_, kContext, stats_);
  CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.captures().begin(stream, [] { return CUDA_SUCCESS; });
  Block block;
  EXPECT_TRUE(ordering.wait(retire(ordering, block)).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc", "free", "alloc"}));
  EXPECT_TRUE(is_reclaimed(ordering, block));
  // A full device does not take the barrier away: it is kept from before.
  gpu.alloc_result = CUDA_ERROR_OUT_OF_MEMORY;
  Block second;
  EXPECT_TRUE(ordering.wait(retire(ordering, second)).complete());
  EXPECT_TRUE(is_reclaimed(ordering, second));
  // Without memory for the next one nothing is reclaimed, and that is no error.
  Block other;
  EXPECT_EQ(ordering.wait(retire(ordering, other)).outcome, WaitResult::Outcome::not_possible);
  EXPECT_FALSE(is_reclaimed(ordering, other));
}

TEST_F(OrderingCaptureTest, OnAFullDeviceHostMemoryIsTheBarrierOfACapture) {  // I3
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  ordering.captures().begin(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  EXPECT_TRUE(ordering.barriers().holds(0x9000));
  EXPECT_FALSE(ordering.barriers().holds(0));
  Block block;
  EXPECT_TRUE(ordering.wait(retire(ordering, block)).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc host", "free host", "alloc host"}));
  EXPECT_TRUE(is_reclaimed(ordering, block));
  // With room again, the next one is the device's.
  gpu.alloc_result = CUDA_SUCCESS;
  gpu.calls.clear();
  Block second;
  EXPECT_TRUE(ordering.wait(retire(ordering, second)).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"free host", "alloc"}));
}

TEST_F(OrderingCaptureTest, WithoutMemoryForABarrierNothingIsReclaimedUntilThereIsSome) {  // I1
  fill_device();
  gpu.alloc_host_result = CUDA_ERROR_OUT_OF_MEMORY;
  Ordering ordering(driver_, kContext, stats_);
  ordering.captures().begin(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  const WaitResult result = ordering.wait(retire(ordering, block));
  EXPECT_EQ(result.outcome, WaitResult::Outcome::not_possible);
  EXPECT_FALSE(result.worth_repeating()) << "at once: there is no memory to wait by";
  EXPECT_FALSE(is_reclaimed(ordering, block));
  gpu.alloc_host_result = CUDA_SUCCESS;
  EXPECT_TRUE(ordering.wait(ordering.newest()).complete());
  EXPECT_TRUE(is_reclaimed(ordering, block));
}

TEST_F(OrderingCaptureTest, AnAbandonedContextTookItsBarrierAlong) {
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  const CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.captures().begin(stream, [] { return CUDA_SUCCESS; });
  ordering.abandon();
  EXPECT_FALSE(ordering.barriers().holds(0x9000));
  ordering.captures().begin(stream, [] { return CUDA_SUCCESS; });
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc host", "alloc host"}));
}

TEST_F(OrderingCaptureTest, ACaptureThatDidNotBeginHoldsNothingUp) {
  Ordering ordering(driver_, kContext, stats_);
  CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.captures().begin(stream, [] { return CUDA_ERROR_INVALID_VALUE; });
  EXPECT_FALSE(ordering.captures().has(stream));
}

TEST_F(OrderingCaptureTest, NoCaptureBeginsBetweenTheDecisionToSynchroniseAndTheCall) {
  driver_.cuCtxRecordEvent = nullptr;
  driver_.cuThreadExchangeStreamCaptureMode = slow_exchange;
  driver_.cuCtxSynchronize = synchronize_unless_capturing;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  ASSERT_NO_FATAL_FAILURE(begin_capture_during_a_wait(ordering, block));
  EXPECT_FALSE(race.invalidated);
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

TEST_F(OrderingCaptureTest, ASynchronisationThatLastsDoesNotHoldACaptureUp) {
  driver_.cuCtxRecordEvent = nullptr;
  driver_.cuCtxSynchronize = synchronize_until_capturing;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  ASSERT_NO_FATAL_FAILURE(begin_capture_during_a_wait(ordering, block));
}

TEST_F(OrderingCaptureTest, AWaitThatACaptureRefusesIsNoErrorAndMayBeRepeated) {  // contract 9
  driver_.cuCtxRecordEvent = nullptr;
  driver_.cuCtxSynchronize = [] { return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; };
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const WaitResult result = ordering.wait(retire(ordering, block));
  EXPECT_EQ(result.outcome, WaitResult::Outcome::not_possible);
  EXPECT_EQ(result.error, CUDA_SUCCESS);
  EXPECT_TRUE(result.worth_repeating());
  EXPECT_FALSE(is_reclaimed(ordering, block));
}

TEST_F(OrderingCaptureTest, ABarrierThatWasNotFreedIsKept) {
  Ordering ordering(driver_, kContext, stats_);
  ordering.captures().begin(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  ASSERT_TRUE(ordering.barriers().holds(0x7000));
  Block block;
  gpu.free_result = CUDA_ERROR_NOT_PERMITTED;
  EXPECT_EQ(ordering.wait(retire(ordering, block)).error, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FALSE(is_reclaimed(ordering, block));
  EXPECT_TRUE(ordering.barriers().holds(0x7000));
  EXPECT_EQ(std::count(gpu.calls.begin(), gpu.calls.end(), "alloc"), 1) << "no second one";
}

TEST_F(OrderingCaptureTest, HostMemoryThatWasNotFreedIsKeptAsWell) {
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  ordering.captures().begin(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  gpu.free_result = CUDA_ERROR_NOT_PERMITTED;
  EXPECT_EQ(ordering.wait(retire(ordering, block)).error, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(ordering.barriers().holds(0x9000));
  EXPECT_EQ(std::count(gpu.calls.begin(), gpu.calls.end(), "alloc host"), 1) << "no second one";
}

TEST_F(OrderingCaptureTest, TheDriverAnswersAFreeByOneOfSpareMemory) {  // contract 9
  Ordering ordering(driver_, kContext, stats_);
  ordering.captures().begin(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  retire(ordering, block);
  gpu.calls.clear();
  gpu.free_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  EXPECT_EQ(ordering.barriers().free_spare().error, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"free"}) << "once: a second answer is another";
  EXPECT_TRUE(ordering.barriers().holds(0x7000)) << "what was not freed is kept";
  EXPECT_FALSE(is_reclaimed(ordering, block));
  gpu.free_result = CUDA_SUCCESS;
  EXPECT_TRUE(ordering.barriers().free_spare().complete());
  EXPECT_TRUE(is_reclaimed(ordering, block)) << "it waited for all that was freed before";
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"free", "free", "alloc"}));
}

TEST_F(OrderingCaptureTest, OnAFullDeviceTheQuestionIsAFreeOfNothing) {  // contract 9
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  ordering.captures().begin(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  retire(ordering, block);
  gpu.calls.clear();
  gpu.free_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  EXPECT_EQ(ordering.barriers().free_spare().error, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"free"}) << "and page-locked memory stays";
  gpu.free_result = CUDA_SUCCESS;
  EXPECT_TRUE(ordering.barriers().free_spare().complete());
  EXPECT_TRUE(is_reclaimed(ordering, block));
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"free", "free", "free host", "alloc host"}));
  // With no memory at all it is answered, and nothing is reclaimed.
  gpu.alloc_host_result = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_TRUE(ordering.barriers().free_spare().complete());
  Block second;
  retire(ordering, second);
  EXPECT_EQ(ordering.barriers().free_spare().outcome, WaitResult::Outcome::not_possible);
  EXPECT_FALSE(is_reclaimed(ordering, second));
}

TEST_F(OrderingCaptureTest, AStreamOrderedFreeWaitsForNothing) {  // contract 9
  Ordering ordering(driver_, kContext, stats_);
  ordering.captures().begin(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  retire(ordering, block);
  static CUresult answer;
  const auto free = [](CUdeviceptr address, CUstream) {
    gpu.calls.emplace_back(address == 0x7000 ? "free in stream" : "free of something else");
    return answer;
  };
  gpu.calls.clear();
  answer = CUDA_ERROR_INVALID_VALUE;
  EXPECT_EQ(ordering.barriers().free_spare_in_stream(free, nullptr), CUDA_ERROR_INVALID_VALUE);
  answer = CUDA_SUCCESS;
  EXPECT_EQ(ordering.barriers().free_spare_in_stream(free, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"free in stream", "free in stream", "alloc"}));
  EXPECT_FALSE(is_reclaimed(ordering, block));
}

}  // namespace
}  // namespace cupool::engine
