// Ordering, the rules I1, I3 and I7, against a driver table whose GPU the test moves by hand.
#include "core/ordering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace cupool::core {
namespace {

// What the fake driver did and what it shall answer; function pointers have no state of their own.
struct FakeGpu {
  std::vector<std::string> calls;
  std::map<CUevent, bool> complete;
  std::uintptr_t next_event = 1;
  CUresult record_result = CUDA_SUCCESS;
  CUresult query_result = CUDA_SUCCESS;
  CUresult alloc_result = CUDA_SUCCESS;
  CUresult alloc_host_result = CUDA_SUCCESS;
  CUresult wait_result = CUDA_SUCCESS;
  CUresult context_result = CUDA_SUCCESS;
  CUresult free_result = CUDA_SUCCESS;
} gpu;

CUcontext const kContext = reinterpret_cast<CUcontext>(0x1000);

CUresult fake_get_current(CUcontext* context) {
  *context = kContext;
  return CUDA_SUCCESS;
}
CUresult fake_create_event(CUevent* event, unsigned int) {
  *event = reinterpret_cast<CUevent>(gpu.next_event++);
  return CUDA_SUCCESS;
}
CUresult fake_record(CUcontext, CUevent event) {
  gpu.calls.emplace_back("record");
  if (gpu.record_result == CUDA_SUCCESS) gpu.complete[event] = false;
  return gpu.record_result;
}
CUresult fake_query(CUevent event) {
  if (gpu.query_result != CUDA_SUCCESS) return gpu.query_result;
  return gpu.complete.at(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult fake_wait(CUevent event) {
  gpu.calls.emplace_back("wait");
  if (gpu.wait_result == CUDA_SUCCESS) gpu.complete[event] = true;
  return gpu.wait_result;
}
CUresult fake_synchronize() {
  gpu.calls.emplace_back("synchronize");
  return gpu.context_result;
}

CUresult fake_alloc(CUdeviceptr* address, std::size_t) {
  if (gpu.alloc_result != CUDA_SUCCESS) return gpu.alloc_result;
  gpu.calls.emplace_back("alloc");
  *address = 0x7000;
  return CUDA_SUCCESS;
}
CUresult fake_free(CUdeviceptr) {
  gpu.calls.emplace_back("free");
  return gpu.free_result;
}
CUresult fake_alloc_host(void** address, std::size_t) {
  if (gpu.alloc_host_result != CUDA_SUCCESS) return gpu.alloc_host_result;
  gpu.calls.emplace_back("alloc host");
  *address = reinterpret_cast<void*>(0x9000);
  return CUDA_SUCCESS;
}
CUresult fake_free_host(void* address) {
  EXPECT_EQ(address, reinterpret_cast<void*>(0x9000));
  gpu.calls.emplace_back("free host");
  return gpu.free_result;
}

// A thread on its way into the driver's synchronisation, and a capture that begins meanwhile.
struct Race {
  std::atomic<bool> decided{false};  ///< to synchronise, and holds no lock any more
  std::atomic<bool> capturing{false};
  std::atomic<bool> invalidated{false};
} race;

template <typename Condition>
bool await(const Condition& condition, std::chrono::milliseconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

CUresult slow_exchange(CUstreamCaptureMode*) {
  if (race.decided.exchange(true)) return CUDA_SUCCESS;
  await([] { return race.capturing.load(); }, std::chrono::milliseconds(10));
  return CUDA_SUCCESS;
}
CUresult synchronize_unless_capturing() {
  race.invalidated = race.capturing.load();
  return race.invalidated ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
CUresult synchronize_until_capturing() {
  race.decided = true;
  const bool begun = await([] { return race.capturing.load(); }, std::chrono::seconds(20));
  return begun ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

class OrderingTest : public testing::Test {
 protected:
  OrderingTest() {
    gpu = FakeGpu{};
    race.decided = race.capturing = race.invalidated = false;
    driver_.cuCtxGetCurrent = fake_get_current;
    driver_.cuEventCreate = fake_create_event;
    driver_.cuCtxRecordEvent = fake_record;
    driver_.cuEventQuery = fake_query;
    driver_.cuEventSynchronize = fake_wait;
    driver_.cuCtxSynchronize = fake_synchronize;
    driver_.cuMemAlloc_v2 = fake_alloc;
    driver_.cuMemFree_v2 = fake_free;
  }
  void fill_device() {
    gpu.alloc_result = CUDA_ERROR_OUT_OF_MEMORY;
    driver_.cuMemAllocHost_v2 = fake_alloc_host;
    driver_.cuMemFreeHost = fake_free_host;
  }
  EpochNumber retire(Ordering& ordering, Block& block) {
    block.capacity = 512;
    block.state.store(BlockState::retired);
    return ordering.retire(&block);
  }
  std::size_t quiet_count(Ordering& ordering) {
    BlockList quiet = ordering.take_quiet();
    return quiet.count;
  }
  cuda::Driver driver_;
  stats::DeviceStats stats_;
};

TEST_F(OrderingTest, ABlockIsQuietOnlyAfterItsFenceWasSeenComplete) {  // I1
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const EpochNumber epoch = retire(ordering, block);
  EXPECT_EQ(quiet_count(ordering), 0u);
  EXPECT_EQ(ordering.wait(epoch), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"}));
  EXPECT_EQ(block.state.load(), BlockState::quiet);
  EXPECT_EQ(quiet_count(ordering), 1u);
  EXPECT_EQ(quiet_count(ordering), 0u) << "handed over once";
}

TEST_F(OrderingTest, PollingDoesNotMakeAnUnfinishedEpochQuiet) {  // I1
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  gpu.wait_result = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_ERROR_LAUNCH_FAILED);
  BlockList quiet;
  ordering.poll(false, &quiet);
  EXPECT_TRUE(quiet.empty());
  EXPECT_EQ(block.state.load(), BlockState::retired);
  for (auto& event : gpu.complete) event.second = true;
  ordering.poll(false, &quiet);
  EXPECT_EQ(quiet.count, 1u);
}

TEST_F(OrderingTest, AFenceThatCannotBeWaitedForIsReplacedByABarrier) {  // contract 2
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  gpu.wait_result = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_SUCCESS);
  // The second block is the next barrier, kept for a capture.
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait", "alloc", "free", "alloc"}));
  EXPECT_EQ(quiet_count(ordering), 1u);
}

TEST_F(OrderingTest, AFenceCoversEveryOlderEpoch) {
  Ordering ordering(driver_, kContext, stats_);
  Block first;
  Block second;
  gpu.wait_result = CUDA_ERROR_LAUNCH_FAILED;  // the first epoch is closed and stays unfinished
  ordering.wait(retire(ordering, first));
  gpu.wait_result = CUDA_SUCCESS;
  EXPECT_EQ(ordering.wait(retire(ordering, second)), CUDA_SUCCESS);
  EXPECT_EQ(quiet_count(ordering), 2u);
}

TEST_F(OrderingTest, NoFenceIsRecordedDuringACapture) {  // I3
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

TEST_F(OrderingTest, AWaitDuringACaptureUsesTheDriversFreeAsABarrier) {  // I3
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

TEST_F(OrderingTest, OnAFullDeviceHostMemoryIsTheBarrierOfACapture) {  // I3
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

TEST_F(OrderingTest, WithoutMemoryForABarrierNothingIsQuietUntilThereIsSome) {  // I1
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

TEST_F(OrderingTest, AnAbandonedContextTookItsBarrierAlong) {
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  const CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.begin_capture(stream, [] { return CUDA_SUCCESS; });
  ordering.abandon();
  EXPECT_FALSE(ordering.is_barrier(0x9000));
  ordering.begin_capture(stream, [] { return CUDA_SUCCESS; });
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc host", "alloc host"}));
}

TEST_F(OrderingTest, ACaptureThatDidNotBeginHoldsNothingUp) {
  Ordering ordering(driver_, kContext, stats_);
  CUstream stream = reinterpret_cast<CUstream>(0x20);
  ordering.begin_capture(stream, [] { return CUDA_ERROR_INVALID_VALUE; });
  EXPECT_FALSE(ordering.captures(stream));
}

TEST_F(OrderingTest, TheProgramsSynchronisationCoversOnlyEarlierFrees) {
  Ordering ordering(driver_, kContext, stats_);
  Block before;
  Block during;
  retire(ordering, before);
  const EpochNumber mark = ordering.begin_synchronize();
  retire(ordering, during);
  ordering.end_synchronize(mark);
  EXPECT_EQ(before.state.load(), BlockState::quiet);
  EXPECT_EQ(during.state.load(), BlockState::retired);
  EXPECT_EQ(quiet_count(ordering), 1u);
}

TEST_F(OrderingTest, AnEpochClosedWithoutFenceIsCoveredByALaterOne) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const EpochNumber epoch = retire(ordering, block);
  ordering.begin_synchronize();  // closes the epoch; the synchronisation then fails
  EXPECT_EQ(quiet_count(ordering), 0u);
  EXPECT_EQ(ordering.wait(epoch), CUDA_SUCCESS);
  EXPECT_EQ(quiet_count(ordering), 1u);
}

TEST_F(OrderingTest, WithoutContextEventsTheContextIsSynchronised) {
  driver_.cuCtxRecordEvent = nullptr;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"synchronize"});
  EXPECT_EQ(quiet_count(ordering), 1u);
}

TEST_F(OrderingTest, AnEventThatTheDriverRefusesIsReplacedByASynchronisation) {
  Ordering ordering(driver_, kContext, stats_);
  gpu.record_result = CUDA_ERROR_NOT_SUPPORTED;
  Block block;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "synchronize"}));
  EXPECT_EQ(quiet_count(ordering), 1u);
}

// I3: the context may only be synchronised while nothing captures, and whether anything does is
// asked before the driver is called.
TEST_F(OrderingTest, NoCaptureBeginsBetweenTheDecisionToSynchroniseAndTheCall) {
  driver_.cuCtxRecordEvent = nullptr;
  driver_.cuThreadExchangeStreamCaptureMode = slow_exchange;
  driver_.cuCtxSynchronize = synchronize_unless_capturing;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const EpochNumber epoch = retire(ordering, block);
  auto waits = std::async(std::launch::async, [&] { return ordering.wait(epoch); });
  ASSERT_TRUE(await([] { return race.decided.load(); }, std::chrono::seconds(20)));
  const auto begin = [] {
    race.capturing = true;
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(ordering.begin_capture(reinterpret_cast<CUstream>(0x20), begin), CUDA_SUCCESS);
  EXPECT_EQ(waits.get(), CUDA_SUCCESS);
  EXPECT_FALSE(race.invalidated);
  EXPECT_EQ(quiet_count(ordering), 1u);
}

// No hang: what the GPU does may depend on the thread that begins the capture.
TEST_F(OrderingTest, ASynchronisationThatLastsDoesNotHoldACaptureUp) {
  driver_.cuCtxRecordEvent = nullptr;
  driver_.cuCtxSynchronize = synchronize_until_capturing;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
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

// The driver answers nothing in a host function, where a program may still free.
TEST_F(OrderingTest, AFenceRefusedInACallbackIsRecordedLater) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  gpu.record_result = CUDA_ERROR_NOT_PERMITTED;
  EXPECT_EQ(ordering.close_if_full({1, 1}), CUDA_SUCCESS);
  gpu.record_result = CUDA_SUCCESS;
  gpu.calls.clear();
  EXPECT_EQ(ordering.wait_for_all(), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"})) << "not synchronised";
  EXPECT_EQ(quiet_count(ordering), 1u);
}

TEST_F(OrderingTest, ABarrierThatWasNotFreedIsKept) {
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

TEST_F(OrderingTest, HostMemoryThatWasNotFreedIsKeptAsWell) {
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  ordering.begin_capture(reinterpret_cast<CUstream>(0x20), [] { return CUDA_SUCCESS; });
  Block block;
  gpu.free_result = CUDA_ERROR_NOT_PERMITTED;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(ordering.is_barrier(0x9000));
  EXPECT_EQ(std::count(gpu.calls.begin(), gpu.calls.end(), "alloc host"), 1) << "no second one";
}

TEST_F(OrderingTest, AnEpochIsClosedWhenItHoldsABatch) {
  Ordering ordering(driver_, kContext, stats_);
  std::array<Block, 3> blocks;
  const Ordering::Batch batch{3, 1 << 20};
  for (Block& block : blocks) {
    EXPECT_TRUE(gpu.calls.empty()) << "one fence for the batch, not one for each free";
    retire(ordering, block);
    EXPECT_EQ(ordering.close_if_full(batch), CUDA_SUCCESS);
  }
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"record"});
  EXPECT_EQ(ordering.pending_bytes(), 3u * 512);
  EXPECT_EQ(stats_.value(stats::Counter::frees_unwaited_busy_total), 3u);
}

TEST_F(OrderingTest, ABatchIsAlsoFullByBytes) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  EXPECT_EQ(ordering.close_if_full({16, 512}), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"record"});
}

TEST_F(OrderingTest, PollingMayCloseTheOpenEpochAndNeverWaits) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  BlockList quiet;
  EXPECT_EQ(ordering.poll(false, &quiet), CUDA_SUCCESS);
  EXPECT_TRUE(gpu.calls.empty());
  EXPECT_EQ(ordering.poll(true, &quiet), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"record"});
  EXPECT_TRUE(quiet.empty()) << "the GPU is not done yet";
  gpu.complete.begin()->second = true;
  EXPECT_EQ(ordering.poll(true, &quiet), CUDA_SUCCESS);
  EXPECT_EQ(quiet.count, 1u);
  EXPECT_EQ(ordering.pending_bytes(), 0u);
}

TEST_F(OrderingTest, TheOldestEpochIsWaitedForFirst) {
  Ordering ordering(driver_, kContext, stats_);
  Block first;
  Block second;
  retire(ordering, first);
  ordering.close_if_full({1, 1});
  retire(ordering, second);
  ordering.close_if_full({1, 1});
  bool waited = false;
  EXPECT_EQ(ordering.wait_for_oldest(&waited), CUDA_SUCCESS);
  EXPECT_TRUE(waited);
  EXPECT_EQ(first.state.load(), BlockState::quiet);
  EXPECT_EQ(second.state.load(), BlockState::retired);
}

TEST_F(OrderingTest, AWaitThatIsBoundedGivesUp) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  EXPECT_EQ(ordering.wait_for_all(nullptr, 1'000'000), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(block.state.load(), BlockState::retired);
}

TEST_F(OrderingTest, APollThatFindsAStickyErrorSaysSo) {  // I7
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  gpu.query_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  BlockList quiet;
  EXPECT_EQ(ordering.poll(true, &quiet), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(quiet.empty());
}

TEST_F(OrderingTest, AStickyErrorIsReportedAndNothingBecomesQuiet) {  // I7
  Ordering ordering(driver_, kContext, stats_);
  gpu.record_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  Block block;
  EXPECT_EQ(ordering.wait(retire(ordering, block)), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(quiet_count(ordering), 0u);
  EXPECT_EQ(block.state.load(), BlockState::retired);
}

TEST_F(OrderingTest, WorkIsWaitedForThoughNothingWasRetired) {  // IPC
  Ordering ordering(driver_, kContext, stats_);
  EXPECT_EQ(ordering.wait_for_work(), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"}));
  EXPECT_EQ(ordering.wait_for_work(), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls.size(), 4u) << "what was submitted since is covered as well";
}

TEST_F(OrderingTest, AnAbandonedContextKeepsNothing) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  ordering.abandon();
  EXPECT_EQ(ordering.wait_for_all(), CUDA_SUCCESS);
  EXPECT_EQ(quiet_count(ordering), 0u);
  EXPECT_TRUE(gpu.calls.empty()) << "events of a destroyed context are not touched";
}

}  // namespace
}  // namespace cupool::core
