// SPDX-License-Identifier: Apache-2.0
// Ordering beside a driver that refuses in the middle of a wait, and contexts that end meanwhile:
// what becomes of the barrier, and what counts as complete.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "engine_ordering_fixture.h"

namespace cupool::engine {
namespace {

class OrderingRefusalTest : public OrderingTest {
 protected:
  // Answers of the driver's next frees; then gpu.free_result.
  static inline std::vector<CUresult> free_answers;
  static inline Ordering* ending = nullptr;
  static inline CUdeviceptr next_address = 0;

  OrderingRefusalTest() {
    free_answers.clear();
    ending = nullptr;
    next_address = 0x7000;
    driver_.cuMemFree_v2 = [](CUdeviceptr) {
      gpu.calls.emplace_back("free");
      if (ending != nullptr) ending->abandon();
      if (free_answers.empty()) return gpu.free_result;
      const CUresult answer = free_answers.front();
      free_answers.erase(free_answers.begin());
      return answer;
    };
  }
  ~OrderingRefusalTest() override { Serving::captures_end(begun_); }

  void begin_capture(Ordering& ordering) {
    ordering.captures().begin(stream_, [] { return CUDA_SUCCESS; });
    ++begun_;
  }
  void end_capture(Ordering& ordering) {
    ordering.captures().end(
        stream_, [] { return CUDA_SUCCESS; }, [] { return false; });
    --begun_;
  }
  static long count_of(const char* call) {
    return std::count(gpu.calls.begin(), gpu.calls.end(), call);
  }
  void refuse_contexts() {
    driver_.cuCtxGetCurrent = [](CUcontext*) { return CUDA_ERROR_UNKNOWN; };
  }

  const CUstream stream_ = reinterpret_cast<CUstream>(0x20);
  std::size_t begun_ = 0;
};

TEST_F(OrderingRefusalTest, TheBarrierOfAContextThatEndedDuringTheWaitIsNotKept) {  // contract 10
  driver_.cuMemAlloc_v2 = [](CUdeviceptr* address, std::size_t) {
    *address = next_address += 0x1000;
    return CUDA_SUCCESS;
  };
  Ordering ordering(driver_, kContext, stats_);
  begin_capture(ordering);
  ASSERT_TRUE(ordering.barriers().holds(0x8000));
  Block block;
  ending = &ordering;
  gpu.free_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  ordering.wait(retire(ordering, block));
  begun_ = 0;  // with the context
  EXPECT_FALSE(ordering.barriers().holds(0x8000)) << "its address may be another owner's now";
  EXPECT_TRUE(ordering.barriers().holds(0x9000));
}

TEST_F(OrderingRefusalTest, WithoutABarrierNoneIsKeptAfterARefusal) {
  fill_device();
  gpu.alloc_host_result = CUDA_ERROR_OUT_OF_MEMORY;
  Ordering ordering(driver_, kContext, stats_);
  gpu.free_result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  EXPECT_EQ(ordering.barriers().free_spare().error, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  gpu.alloc_result = CUDA_SUCCESS;
  begin_capture(ordering);
  EXPECT_TRUE(ordering.barriers().holds(0x7000)) << "made once there is memory";
}

TEST_F(OrderingRefusalTest, ARefusalThatPassesIsAskedAboutOnceMore) {  // contract 9
  Ordering ordering(driver_, kContext, stats_);
  begin_capture(ordering);
  Block block;
  retire(ordering, block);
  free_answers = {CUDA_ERROR_UNKNOWN};
  EXPECT_TRUE(ordering.barriers().free_spare().complete());
  EXPECT_TRUE(is_reclaimed(ordering, block));
  EXPECT_EQ(count_of("free"), 2);
  // And so in a wait.
  Block second;
  free_answers = {CUDA_ERROR_UNKNOWN};
  EXPECT_TRUE(ordering.wait(retire(ordering, second)).complete());
  EXPECT_TRUE(is_reclaimed(ordering, second));
  EXPECT_EQ(count_of("free"), 4);
  // Not for ever.
  Block third;
  free_answers = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN};
  EXPECT_EQ(ordering.wait(retire(ordering, third)).error, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(is_reclaimed(ordering, third));
}

TEST_F(OrderingRefusalTest,
       AStreamOrderedFreeOfNothingLeavesHostMemoryAsTheBarrier) {  // contract 9
  fill_device();
  Ordering ordering(driver_, kContext, stats_);
  begin_capture(ordering);
  const auto free = [](CUdeviceptr address, CUstream) {
    gpu.calls.emplace_back(address == 0 ? "free of nothing" : "free of something");
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(ordering.barriers().free_spare_in_stream(free, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(ordering.barriers().holds(0x9000));
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"alloc host", "free of nothing"}));
}

TEST_F(OrderingRefusalTest, ABarrierWhoseContextCannotBeMadeCurrentIsKept) {
  Ordering ordering(driver_, kContext, stats_);
  begin_capture(ordering);
  refuse_contexts();
  Block block;
  const WaitResult result = ordering.wait(retire(ordering, block));
  EXPECT_EQ(result.error, CUDA_ERROR_UNKNOWN) << "the driver's answer";
  EXPECT_FALSE(is_reclaimed(ordering, block));
  EXPECT_EQ(count_of("free"), 0);
  EXPECT_TRUE(ordering.barriers().holds(0x7000));
}

TEST_F(OrderingRefusalTest, PageLockedMemoryThatCannotBeFreedIsNoBarrier) {
  fill_device();
  driver_.cuMemFreeHost = nullptr;
  Ordering ordering(driver_, kContext, stats_);
  begin_capture(ordering);
  EXPECT_FALSE(ordering.barriers().holds(0x9000));
  EXPECT_EQ(count_of("alloc host"), 0);
}

TEST_F(OrderingRefusalTest, WithoutContextEventsAWaitDuringACaptureIsABarrierToo) {  // I3
  driver_.cuCtxRecordEvent = nullptr;
  Ordering ordering(driver_, kContext, stats_);
  begin_capture(ordering);
  Block block;
  EXPECT_TRUE(ordering.wait(retire(ordering, block)).complete());
  EXPECT_EQ(count_of("synchronize"), 0);
  EXPECT_EQ(count_of("free"), 1);
}

TEST_F(OrderingRefusalTest, TheEndOfAnotherStreamEndsNoCapture) {  // I3
  Ordering ordering(driver_, kContext, stats_);
  begin_capture(ordering);
  ordering.captures().end(
      reinterpret_cast<CUstream>(0x30), [] { return CUDA_SUCCESS; }, [] { return false; });
  EXPECT_TRUE(Serving::any_capture());
  EXPECT_TRUE(ordering.captures().has(stream_));
}

TEST_F(OrderingRefusalTest, AWaitThatWasRefusedHalfwayHasWaited) {
  fill_device();
  gpu.alloc_host_result = CUDA_ERROR_OUT_OF_MEMORY;  // nor is there a barrier
  gpu.wait_result = CUDA_ERROR_UNKNOWN;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const WaitResult result = ordering.wait(retire(ordering, block));
  EXPECT_EQ(result.outcome, WaitResult::Outcome::not_possible);
  EXPECT_TRUE(result.waited) << "the GPU was seen busy";
  EXPECT_TRUE(result.worth_repeating());
  EXPECT_FALSE(is_reclaimed(ordering, block));
}

TEST_F(OrderingRefusalTest, AWaitThatFailedIsNotWorthRepeating) {  // I7
  gpu.wait_result = CUDA_ERROR_LAUNCH_FAILED;
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const WaitResult result = ordering.wait(retire(ordering, block));
  EXPECT_TRUE(result.waited);
  EXPECT_FALSE(result.worth_repeating());
}

TEST_F(OrderingRefusalTest, InAHostFunctionAFailedRecordEndsNoFences) {  // contract 3
  Ordering ordering(driver_, kContext, stats_);
  Block block;
  const EpochNumber epoch = retire(ordering, block);
  gpu.record_result = CUDA_ERROR_UNKNOWN;
  driver_.cuEventCreate = [](CUevent*, unsigned) { return CUDA_ERROR_UNKNOWN; };
  driver_.cuCtxGetCurrent = [](CUcontext*) { return CUDA_ERROR_NOT_PERMITTED; };
  EXPECT_EQ(ordering.close(), CUDA_SUCCESS);
  driver_.cuEventCreate = fake_create_event;
  driver_.cuCtxGetCurrent = fake_get_current;
  gpu.record_result = CUDA_SUCCESS;
  gpu.calls.clear();
  EXPECT_TRUE(ordering.wait(epoch).complete());
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"record", "wait"}));
}

// It stays in the queue for the thread that still waits for its fence.
TEST_F(OrderingRefusalTest, AnEpochThatIsCompleteIsNotTheOldest) {
  static std::atomic<bool> entered;
  static std::atomic<bool> leave;
  static thread_local bool is_late = false;
  entered = leave = false;
  driver_.cuEventQuery = [](CUevent) {
    if (is_late) {
      for (entered = true; !leave;) std::this_thread::yield();
    }
    return CUDA_SUCCESS;
  };
  Ordering ordering(driver_, kContext, stats_);
  std::array<Block, 2> blocks;
  const EpochNumber first = retire(ordering, blocks[0]);
  EXPECT_TRUE(ordering.fence(first));
  const EpochNumber second = retire(ordering, blocks[1]);
  EXPECT_TRUE(ordering.fence(second));
  std::thread late([&] {
    is_late = true;
    EXPECT_TRUE(ordering.wait(first).complete());
  });
  while (!entered) std::this_thread::yield();
  EXPECT_TRUE(ordering.wait(first).complete());
  EXPECT_EQ(ordering.epochs().complete_up_to(), first);
  EXPECT_TRUE(ordering.wait_for_oldest().complete());
  EXPECT_EQ(ordering.epochs().complete_up_to(), second);
  leave = true;
  late.join();
}

// Whether the GPU ran dry, of a wait for the oldest epoch.
class RanDryTest : public OrderingRefusalTest {
 protected:
  // One epoch with a pending fence.
  RanDryTest() : ordering_(driver_, kContext, stats_) {
    retire(ordering_, block_);
    EXPECT_EQ(ordering_.close(), CUDA_SUCCESS);
  }
  bool runs_dry() {
    bool dry = false;
    ordering_.wait_for_oldest(&dry);
    return dry;
  }
  // What is asked when the wait is over.
  static CUresult complete_and_refuse(CUevent event) {
    gpu.complete[event] = true;
    gpu.record_result = CUDA_ERROR_LAUNCH_FAILED;
    return CUDA_SUCCESS;
  }

  Ordering ordering_;
  Block block_;
};

TEST_F(RanDryTest, ItDidIfAFenceIsCompleteAtOnce) {
  driver_.cuCtxRecordEvent = [](CUcontext, CUevent event) {
    gpu.complete[event] = true;
    return CUDA_SUCCESS;
  };
  EXPECT_TRUE(runs_dry());
}

TEST_F(RanDryTest, ItDidNotIfThatFenceIsPending) {
  EXPECT_FALSE(runs_dry());
}

TEST_F(RanDryTest, NobodyKnowsAfterAWaitThatFailed) {
  gpu.wait_result = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_FALSE(runs_dry());
  EXPECT_EQ(count_of("record"), 1) << "not asked for";
}

TEST_F(RanDryTest, NobodyKnowsIfTheFenceIsRefused) {
  driver_.cuEventSynchronize = complete_and_refuse;
  EXPECT_FALSE(runs_dry());
}

TEST_F(RanDryTest, NobodyKnowsDuringACapture) {  // I3
  begin_capture(ordering_);
  gpu.calls.clear();
  EXPECT_FALSE(runs_dry());
  EXPECT_EQ(count_of("record"), 0);
}

TEST_F(RanDryTest, NobodyKnowsIfAnOlderFenceCannotBeAskedFor) {
  Block second;
  retire(ordering_, second);
  EXPECT_EQ(ordering_.close(), CUDA_SUCCESS);
  driver_.cuEventSynchronize = [](CUevent event) {
    gpu.complete[event] = true;
    gpu.query_result = CUDA_ERROR_LAUNCH_FAILED;
    return CUDA_SUCCESS;
  };
  EXPECT_FALSE(runs_dry());
  EXPECT_EQ(count_of("record"), 2) << "no third one";
}

TEST(EpochsTest, TheNewestEpochOfFreesThatDidNotWaitStays) {  // contract 8
  Epochs epochs;
  epochs.set_unwaited(EpochNumber{5});
  epochs.set_unwaited(EpochNumber{3});
  EXPECT_EQ(epochs.unwaited(), EpochNumber{5});
}

}  // namespace
}  // namespace cupool::engine
