// SPDX-License-Identifier: Apache-2.0
// Ordering: when epochs are closed, waited for and complete. Captures are in
// engine_ordering_capture_test.cpp.
#include "engine_ordering_fixture.h"

#include <chrono>
#include <thread>

#include "stats/stall.h"
#include "util/clock.h"

namespace cupool::engine {
namespace {

TEST_F(OrderingTest, ABlockIsReclaimedOnlyAfterItsFenceWasSeenComplete) {  // I1
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const EpochNumber epoch = retire(ordering, block);
  EXPECT_EQ(reclaimed_count(ordering), 0u);
  EXPECT_TRUE(ordering.wait(epoch).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"}));
  EXPECT_EQ(block.state.load(), BlockState::freed) << "until it is cached";
  EXPECT_EQ(reclaimed_count(ordering), 1u);
  EXPECT_EQ(reclaimed_count(ordering), 0u) << "handed over once";
}

TEST_F(OrderingTest, PollingDoesNotCompleteAnUnfinishedEpoch) {  // I1
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  gpu.wait_result = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(ordering.wait(retire(ordering, block)).error, CUDA_ERROR_LAUNCH_FAILED);
  BlockList reclaimed;
  ordering.poll(Ordering::Poll::closed, &reclaimed);
  EXPECT_TRUE(reclaimed.empty());
  EXPECT_FALSE(is_reclaimed(ordering, block));
  for (auto& event : gpu.complete) event.second = true;
  ordering.poll(Ordering::Poll::closed, &reclaimed);
  EXPECT_EQ(reclaimed.count, 1u);
}

TEST_F(OrderingTest, AFenceThatCannotBeWaitedForIsReplacedByABarrier) {  // contract 2
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  gpu.wait_result = CUDA_ERROR_UNKNOWN;
  EXPECT_TRUE(ordering.wait(retire(ordering, block)).complete());
  // The second block is the next barrier, kept for a capture.
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait", "alloc", "free", "alloc"}));
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

TEST_F(OrderingTest, AFenceCoversEveryOlderEpoch) {
  Ordering ordering(driver_, kContext, stats_);
  Block first;
  Block second;
  gpu.wait_result = CUDA_ERROR_LAUNCH_FAILED;  // the first epoch is closed and stays unfinished
  ordering.wait(retire(ordering, first));
  gpu.wait_result = CUDA_SUCCESS;
  EXPECT_TRUE(ordering.wait(retire(ordering, second)).complete());
  EXPECT_EQ(reclaimed_count(ordering), 2u);
}

TEST_F(OrderingTest, TheProgramsSynchronisationCoversOnlyEarlierFrees) {
  Ordering ordering(driver_, kContext, stats_);
  Block before;
  Block during;
  retire(ordering, before);
  const EpochNumber mark = ordering.begin_synchronize();
  retire(ordering, during);
  ordering.end_synchronize(mark);
  const BlockList reclaimed = ordering.pop_reclaimed();
  EXPECT_EQ(reclaimed.count, 1u);
  EXPECT_EQ(reclaimed.head, &before);
}

TEST_F(OrderingTest, AnEpochClosedWithoutFenceIsCoveredByALaterOne) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const EpochNumber epoch = retire(ordering, block);
  ordering.begin_synchronize();  // closes the epoch; the synchronisation then fails
  EXPECT_EQ(reclaimed_count(ordering), 0u);
  EXPECT_TRUE(ordering.wait(epoch).complete());
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

TEST_F(OrderingTest, WithoutContextEventsTheContextIsSynchronised) {
  driver_.cuCtxRecordEvent = nullptr;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  EXPECT_TRUE(ordering.wait(retire(ordering, block)).complete());
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"synchronize"});
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

TEST_F(OrderingTest, AnEventThatTheDriverRefusesIsReplacedByASynchronisation) {
  Ordering ordering(driver_, kContext, stats_);
  gpu.record_result = CUDA_ERROR_NOT_SUPPORTED;
  Block block;
  EXPECT_TRUE(ordering.wait(retire(ordering, block)).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "record", "synchronize"}));
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

TEST_F(OrderingTest, AnEventThatTheDriverRefusesOnceIsRecorded) {
  Ordering ordering(driver_, kContext, stats_);
  gpu.records_refused = 1;
  Block block;
  EXPECT_TRUE(ordering.wait(retire(ordering, block)).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "record", "wait"}));
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

// I3: the context may only be synchronised while nothing captures, and whether anything does is
// asked before the driver is called.
// No hang: what the GPU does may depend on the thread that begins the capture.
// The driver answers nothing in a host function, where a program may still free.
TEST_F(OrderingTest, AFenceRefusedInACallbackIsRecordedLater) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  gpu.record_result = CUDA_ERROR_NOT_PERMITTED;
  EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
  gpu.record_result = CUDA_SUCCESS;
  gpu.calls.clear();
  EXPECT_TRUE(ordering.wait(ordering.newest()).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"})) << "not synchronised";
  EXPECT_EQ(reclaimed_count(ordering), 1u);
}

TEST_F(OrderingTest, AnEpochIsClosedWithOneFenceForAllItsFrees) {
  Ordering ordering(driver_, kContext, stats_);
  std::array<Block, 3> blocks;
  EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
  for (Block& block : blocks) retire(ordering, block);
  EXPECT_TRUE(gpu.calls.empty()) << "nothing to fence at first, and no fence for each free";
  EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"record"});
  EXPECT_EQ(ordering.epochs().pending_bytes(), 3u * 512);
}

// The rule of stats/stall.h: a fence that is pending when it was just recorded tells nothing.
TEST_F(OrderingTest, AFreeAvoidsAStallIfWorkIsStillPendingSomeTimeAfterIt) {
  Ordering ordering(driver_, kContext, stats_);
  std::array<Block, 4> blocks;
  const auto avoided = [this] { return stats_.value(stats::Counter::frees_unwaited_busy_total); };
  // How many frees have avoided one once `block` is freed. Where the machine pauses this thread in
  // the midst, the free's own fence is rightly found pending: that one does not count yet.
  const auto avoided_after = [&](Block& block, std::uint64_t expected) {
    ordering.epochs().stalls_avoided().count();
    retire(ordering, block);
    const std::uint64_t start = util::now_ns();
    EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
    const bool paused = util::now_ns() - start >= stats::kShortestStallNs;
    return avoided() - (paused && avoided() == expected + 1 ? 1 : 0);
  };
  const auto some_time = [] {
    const std::uint64_t start = util::now_ns();
    while (util::now_ns() - start <= stats::kShortestStallNs) {
    }
  };
  EXPECT_EQ(avoided_after(blocks[0], 0), 0u) << "the fence has only been recorded";
  const std::uint64_t first = avoided();
  for (auto& event : gpu.complete) event.second = true;
  some_time();
  EXPECT_EQ(avoided_after(blocks[1], first), first) << "the first one's fence was complete";
  some_time();
  EXPECT_EQ(avoided_after(blocks[2], first + 1), first + 1) << "the second one's fence is pending";
  some_time();
  BlockList reclaimed;
  ordering.poll(Ordering::Poll::closed, &reclaimed);
  EXPECT_EQ(avoided(), first + 2) << "so is all behind it";
  ordering.poll(Ordering::Poll::closed, &reclaimed);
  EXPECT_EQ(avoided(), first + 2) << "each free once";
}

// The driver's free would have found nothing to wait for: the one before it had waited.
TEST_F(OrderingTest, AFreeWithoutWorkSinceTheLastAvoidsNoStall) {
  Ordering ordering(driver_, kContext, stats_);
  std::array<Block, 3> blocks;
  for (Block& block : blocks) {
    retire(ordering, block);
    EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::nanoseconds(2 * stats::kShortestStallNs));
  }
  EXPECT_EQ(stats_.value(stats::Counter::frees_unwaited_busy_total), 0u);
}

TEST_F(OrderingTest, AFreeThatWaitedAtTheLimitAvoidsNoStall) {
  Ordering ordering(driver_, kContext, stats_);
  std::array<Block, 2> blocks;
  bool paused = false;
  for (Block& block : blocks) {
    ordering.epochs().stalls_avoided().count();
    retire(ordering, block);
    const std::uint64_t start = util::now_ns();
    EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
    paused = util::now_ns() - start >= stats::kShortestStallNs;
    std::this_thread::sleep_for(std::chrono::nanoseconds(2 * stats::kShortestStallNs));
  }
  ordering.epochs().stalls_avoided().discount();
  BlockList reclaimed;
  ordering.poll(Ordering::Poll::closed, &reclaimed);
  const std::uint64_t avoided = stats_.value(stats::Counter::frees_unwaited_busy_total);
  // Where the machine paused this thread in the midst of the second free, that is rightly counted
  // before.
  EXPECT_EQ(avoided - (paused && avoided == 2 ? 1 : 0), 1u);
}

TEST_F(OrderingTest, PollingMayCloseTheOpenEpochAndNeverWaits) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  BlockList reclaimed;
  EXPECT_EQ(ordering.poll(Ordering::Poll::closed, &reclaimed), CUDA_SUCCESS);
  EXPECT_TRUE(gpu.calls.empty());
  EXPECT_EQ(ordering.poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
  EXPECT_EQ(gpu.calls, std::vector<std::string>{"record"});
  EXPECT_TRUE(reclaimed.empty()) << "the GPU is not done yet";
  gpu.complete.begin()->second = true;
  EXPECT_EQ(ordering.poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
  EXPECT_EQ(reclaimed.count, 1u);
  EXPECT_EQ(ordering.epochs().pending_bytes(), 0u);
}

TEST_F(OrderingTest, TheOldestEpochIsWaitedForFirst) {
  Ordering ordering(driver_, kContext, stats_);
  Block first;
  Block second;
  retire(ordering, first);
  ordering.close();
  retire(ordering, second);
  ordering.close();
  const WaitResult result = ordering.wait_for_oldest();
  EXPECT_TRUE(result.complete());
  EXPECT_TRUE(result.waited);
  const BlockList reclaimed = ordering.pop_reclaimed();
  EXPECT_EQ(reclaimed.count, 1u);
  EXPECT_EQ(reclaimed.head, &first);
}

TEST_F(OrderingTest, AWaitThatIsBoundedGivesUp) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  const WaitResult result = ordering.wait(ordering.newest(), 1'000'000);
  EXPECT_EQ(result.outcome, WaitResult::Outcome::still_pending);
  EXPECT_TRUE(result.worth_repeating());
  EXPECT_FALSE(is_reclaimed(ordering, block));
}

// Its fence covers work that is no freed block's.
TEST_F(OrderingTest, AnEmptyEpochThatIsNotCompleteHasNothingPending) {
  Ordering ordering(driver_, kContext, stats_);
  EXPECT_EQ(ordering.wait(ordering.epochs().open(), 1'000'000).outcome,
            WaitResult::Outcome::still_pending);
  EXPECT_EQ(ordering.newest(), kNoEpoch);
  Block block;
  const EpochNumber freed = retire(ordering, block);
  EXPECT_EQ(ordering.newest(), freed);
  EXPECT_EQ(ordering.wait(freed, 1'000'000).outcome, WaitResult::Outcome::still_pending);
  EXPECT_EQ(ordering.wait(ordering.epochs().open(), 1'000'000).outcome,
            WaitResult::Outcome::still_pending);
  EXPECT_EQ(ordering.newest(), freed) << "a wait is for what was freed, not for what came later";
}

TEST_F(OrderingTest, APollThatFindsAStickyErrorSaysSo) {  // I7
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  gpu.query_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  BlockList reclaimed;
  EXPECT_EQ(ordering.poll(Ordering::Poll::all, &reclaimed), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(reclaimed.empty());
}

TEST_F(OrderingTest, AStickyErrorIsReportedAndNothingIsReclaimed) {  // I7
  Ordering ordering(driver_, kContext, stats_);
  gpu.record_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  Block block;
  EXPECT_EQ(ordering.wait(retire(ordering, block)).error, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(reclaimed_count(ordering), 0u);
  EXPECT_FALSE(is_reclaimed(ordering, block));
}

TEST_F(OrderingTest, WorkIsWaitedForThoughNothingWasRetired) {  // IPC
  Ordering ordering(driver_, kContext, stats_);
  EXPECT_TRUE(ordering.wait(ordering.epochs().open()).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"}));
  EXPECT_TRUE(ordering.wait(ordering.epochs().open()).complete());
  EXPECT_EQ(gpu.calls.size(), 4u) << "what was submitted since is covered as well";
}

TEST_F(OrderingTest, AnAbandonedContextKeepsNothing) {
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  retire(ordering, block);
  ordering.abandon();
  EXPECT_TRUE(ordering.wait(ordering.newest()).complete());
  EXPECT_EQ(reclaimed_count(ordering), 0u);
  EXPECT_TRUE(gpu.calls.empty()) << "events of a destroyed context are not touched";
}

}  // namespace
}  // namespace cupool::engine
