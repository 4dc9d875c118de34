// Ordering and captures, the rule I3: no fence and no synchronisation while one is under way, and
// the barriers that a wait has instead.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "core_ordering_fixture.h"

namespace cupool::core {
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
    EXPECT_EQ(ordering.begin_capture(reinterpret_cast<CUstream>(0x20), begin), CUDA_SUCCESS);
    EXPECT_EQ(waits.get(), CUDA_SUCCESS);
  }
};

TEST_F(OrderingCaptureTest, NoFenceIsRecordedDuringACapture) {  // I3
  Ordering ordering(driver_, kContext, stats_);
  CUstream stream = reinterpret_cast<CUstream>(0x20);
  ASSERT_EQ(ordering.begin_capture(stream, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_TRUE(ordering.captures(stream));
  gpu.calls.clear();
  Block block;
  retire(ordering, block);
  EXPECT_EQ(ordering.close_if_full({1, 1}), CUDA_SUCCESS);
  BlockList quiet;
  EXPECT_EQ(ordering.poll(true, &quiet), CUDA_SUCCESS);
  EXPECT_TRUE(gpu.calls.empty());
  EXPECT_EQ(block.state.load(), BlockState::retired);
  // The end of the capture that the driver refuses does not end it.
  ordering.end_capture(
      stream, [] { return CUDA_ERROR_INVALID_VALUE; }, [] { return true; });
  EXPECT_TRUE(ordering.captures(stream));
  ordering.end_capture(
      stream, [] { return CUDA_SUCCESS; }, [] { return false; });
  EXPECT_EQ(ordering.wait_for_all(), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"}));
  EXPECT_EQ(quiet_count(ordering), 1u);
}

TEST_F(OrderingCaptureTest, AWaitDuringACaptureUsesTheDriversFreeAsABarrier) {  // I3
  Ordering ordering(driver_, kContext, stats_);
  CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.begin_capture(stream, [] { return CUDA_SUCCESS; });
  Block block;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc", "free", "alloc"}));
  EXPECT_EQ(block.state.load(), BlockState::quiet);
  // A full device does not take the barrier away: it is kept from before.
  gpu.alloc_result = CUDA_ERROR_OUT_OF_MEMORY;
  Block second;
  EXPECT_EQ(ordering.wait(retire(ordering, second)), CUDA_SUCCESS);
  EXPECT_EQ(second.state.load(), BlockState::quiet);
  // Without memory for the next one nothing is quiet, and that is no error.
  Block other;
  EXPECT_EQ(ordering.wait(retire(ordering, other)), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(other.state.load(), BlockState::retired);
}

TEST_F(OrderingCaptureTest, OnAFullDeviceHostMemoryIsTheBarrierOfACapture) {  // I3
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  ordering.begin_capture(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  EXPECT_TRUE(ordering.is_barrier(0x9000));
  EXPECT_FALSE(ordering.is_barrier(0));
  Block block;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc host", "free host", "alloc host"}));
  EXPECT_EQ(block.state.load(), BlockState::quiet);
  // With room again, the next one is the device's.
  gpu.alloc_result = CUDA_SUCCESS;
  gpu.calls.clear();
  Block second;
  EXPECT_EQ(ordering.wait(retire(ordering, second)), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"free host", "alloc"}));
}

TEST_F(OrderingCaptureTest, WithoutMemoryForABarrierNothingIsQuietUntilThereIsSome) {  // I1
  fill_device();
  gpu.alloc_host_result = CUDA_ERROR_OUT_OF_MEMORY;
  Ordering ordering(driver_, kContext, stats_);
  ordering.begin_capture(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(block.state.load(), BlockState::retired);
  gpu.alloc_host_result = CUDA_SUCCESS;
  EXPECT_EQ(ordering.wait_for_all(), CUDA_SUCCESS);
  EXPECT_EQ(block.state.load(), BlockState::quiet);
}

TEST_F(OrderingCaptureTest, AnAbandonedContextTookItsBarrierAlong) {
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  const CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.begin_capture(stream, [] { return CUDA_SUCCESS; });
  ordering.abandon();
  EXPECT_FALSE(ordering.is_barrier(0x9000));
  ordering.begin_capture(stream, [] { return CUDA_SUCCESS; });
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc host", "alloc host"}));
}

TEST_F(OrderingCaptureTest, ACaptureThatDidNotBeginHoldsNothingUp) {
  Ordering ordering(driver_, kContext, stats_);
  CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.begin_capture(stream, [] { return CUDA_ERROR_INVALID_VALUE; });
  EXPECT_FALSE(ordering.captures(stream));
}

TEST_F(OrderingCaptureTest, NoCaptureBeginsBetweenTheDecisionToSynchroniseAndTheCall) {
  driver_.cuCtxRecordEvent = nullptr;
  driver_.cuThreadExchangeStreamCaptureMode = slow_exchange;
  driver_.cuCtxSynchronize = synchronize_unless_capturing;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  ASSERT_NO_FATAL_FAILURE(begin_capture_during_a_wait(ordering, block));
  EXPECT_FALSE(race.invalidated);
  EXPECT_EQ(quiet_count(ordering), 1u);
}

TEST_F(OrderingCaptureTest, ASynchronisationThatLastsDoesNotHoldACaptureUp) {
  driver_.cuCtxRecordEvent = nullptr;
  driver_.cuCtxSynchronize = synchronize_until_capturing;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  ASSERT_NO_FATAL_FAILURE(begin_capture_during_a_wait(ordering, block));
}

TEST_F(OrderingCaptureTest, ABarrierThatWasNotFreedIsKept) {
  Ordering ordering(driver_, kContext, stats_);
  ordering.begin_capture(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  ASSERT_TRUE(ordering.is_barrier(0x7000));
  Block block;
  gpu.free_result = CUDA_ERROR_NOT_PERMITTED;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(block.state.load(), BlockState::retired);
  EXPECT_TRUE(ordering.is_barrier(0x7000));
  EXPECT_EQ(std::count(gpu.calls.begin(), gpu.calls.end(), "alloc"), 1) << "no second one";
}

TEST_F(OrderingCaptureTest, HostMemoryThatWasNotFreedIsKeptAsWell) {
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  ordering.begin_capture(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  gpu.free_result = CUDA_ERROR_NOT_PERMITTED;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(ordering.is_barrier(0x9000));
  EXPECT_EQ(std::count(gpu.calls.begin(), gpu.calls.end(), "alloc host"), 1) << "no second one";
}

}  // namespace
}  // namespace cupool::core
