// SPDX-License-Identifier: Apache-2.0
// The lane beside a driver that refuses: events, contexts and waits (I1). What was handed out in
// the stream's order stays behind the mark, or the host waits; and the end of the lane when others
// know too much of the process.
#include <array>

#include "engine/reclaim/dependent_launches.h"
#include "engine/reclaim/lane_stalls.h"
#include "engine/reclaim/serving.h"
#include "engine/reclaim/unseen_work.h"
#include "engine_lane_fixture.h"
#include "stats/device_stats.h"
#include "util/clock.h"

namespace cupool::engine {
namespace {

using namespace lane_test;

class LaneRefusalTest : public LaneTest {
 protected:
  static inline bool refuses_contexts = false;
  static inline int synchronised_contexts = 0;
  LaneRefusalTest() {
    refuses_contexts = false;
    synchronised_contexts = 0;
    driver_.cuCtxGetCurrent = [](CUcontext* context) {
      *context = one_context;
      return refuses_contexts ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    };
    driver_.cuCtxSynchronize = [] {
      ++synchronised_contexts;
      return CUDA_SUCCESS;
    };
  }
  // A lane with a block that was handed out in it, and no mark behind its last work.
  void leave_by_a_refused_mark() {
    open(created);
    ASSERT_TRUE(free_is_covered());
    submit(created);
    calls.record = CUDA_ERROR_UNKNOWN;
    ASSERT_FALSE(free_is_covered());
    ASSERT_TRUE(LaneMark::is_stale());
    calls.record = CUDA_SUCCESS;
  }
};

TEST_F(LaneRefusalTest, AMarkWhoseEventCannotBeMadeCoversNoFree) {
  open(created);
  driver_.cuEventCreate = [](CUevent*, unsigned) { return CUDA_ERROR_OUT_OF_MEMORY; };
  EXPECT_FALSE(free_is_covered());
  EXPECT_FALSE(Lane::is_open());
  submit(second);
  EXPECT_EQ(calls.waits, 0) << "there is no event";
  EXPECT_EQ(calls.synchronised, 1) << "the stream itself is waited for";
}

TEST_F(LaneRefusalTest, AMarkWhoseContextIsRefusedCoversNoFree) {
  open(created);
  refuses_contexts = true;
  EXPECT_FALSE(free_is_covered());
  submit(second);
  EXPECT_EQ(calls.synchronised, 0) << "nor can the stream be waited for";
  EXPECT_TRUE(LaneMark::is_awaited());
  refuses_contexts = false;
  submit(second);
  EXPECT_EQ(calls.synchronised, 1) << "later, then";
  EXPECT_FALSE(LaneMark::is_awaited());
}

TEST_F(LaneRefusalTest, TheContextIsWaitedForOnceTheStreamIsGone) {
  leave_by_a_refused_mark();
  Lane::destroys(created);
  submit(second);
  EXPECT_EQ(synchronised_contexts, 1);
  EXPECT_FALSE(LaneMark::is_awaited());
}

TEST_F(LaneRefusalTest, AHostWaitIsOneForTheStreamWithoutAMark) {
  leave_by_a_refused_mark();
  EXPECT_TRUE(LaneMark::wait(driver_));
  EXPECT_EQ(calls.synchronised, 1);
}

TEST_F(LaneRefusalTest, AStreamThatCannotWaitIsHeldUpByTheHost) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  driver_.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return CUDA_ERROR_UNKNOWN; };
  submit(second);
  EXPECT_EQ(calls.synchronised, 1);
}

TEST_F(LaneRefusalTest, OneLookAtTheMarkTellsWhetherItIsComplete) {
  EXPECT_TRUE(LaneMark::wait(driver_, LaneMark::Wait::not_at_all)) << "nothing was handed out";
  open(created);
  ASSERT_TRUE(free_is_covered());
  EXPECT_FALSE(LaneMark::wait(driver_, LaneMark::Wait::not_at_all));
  calls.idle = {created};
  EXPECT_TRUE(LaneMark::wait(driver_, LaneMark::Wait::not_at_all));
  EXPECT_EQ(calls.synchronised, 0);
  Lane::context_ends(nullptr, one_context);
  EXPECT_TRUE(LaneMark::wait(driver_, LaneMark::Wait::not_at_all)) << "it went with its context";
  EXPECT_TRUE(LaneMark::wait(driver_));
  EXPECT_EQ(calls.synchronised, 0);
}

TEST_F(LaneRefusalTest, TheProcessDoesNotReturnToALaneWhoseMarkWasRefused) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  submit(second);  // away
  calls.record = CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(LaneMark::record(driver_)) << "that of a free which began before";
  calls.record = CUDA_SUCCESS;
  calls.complete = true;
  EXPECT_FALSE(returns(created));
  EXPECT_TRUE(Lane::is_over());
}

TEST_F(LaneRefusalTest, WorkOfOthersThatTakesLongLeavesItForGood) {
  open(created);
  submit(second);
  std::this_thread::sleep_for(std::chrono::milliseconds(1020));
  EXPECT_FALSE(returns(created));
  calls.idle = {second};
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(returns(created));
  EXPECT_TRUE(Lane::is_over());
}

TEST_F(LaneRefusalTest, AnOldDriverNamesTheContextOfTheThread) {
  driver_.cuStreamGetCtx = nullptr;
  open(created);
  EXPECT_TRUE(Lane::holds(created));
  EXPECT_TRUE(Lane::is_in(one_context));
  EXPECT_FALSE(Lane::is_in(other_context));
}

TEST_F(LaneRefusalTest, WorkOfAStreamWhoseContextIsNotToldLeavesIt) {
  open(created);
  driver_.cuStreamGetCtx = [](CUstream, CUcontext*) { return CUDA_ERROR_UNKNOWN; };
  submit(second);
  EXPECT_TRUE(Lane::is_over());
  EXPECT_TRUE(several_contexts());
}

// Another thread may have opened the lane since the hook looked.
TEST_F(LaneRefusalTest, AnAdmissionToTheLanesOwnStreamIsInside) {
  open(created);
  EXPECT_EQ(Lane::admit(driver_, created, "a call"), Lane::Work::inside);
  EXPECT_TRUE(Lane::is_open());
}

TEST_F(LaneRefusalTest, SixteenOtherContextsAreKnownByNameAndNoMore) {  // contract 14
  const auto context = [](std::uintptr_t number) {
    return reinterpret_cast<CUcontext>(0x100000 + 0x100 * number);
  };
  Lane::context_seen(one_context);
  EXPECT_FALSE(several_contexts());
  for (std::uintptr_t i = 0; i < 16; ++i) Lane::context_seen(context(i));
  for (std::uintptr_t i = 0; i < 16; ++i) Lane::context_seen(context(i));
  ASSERT_TRUE(other_contexts_seen());
  EXPECT_EQ((*other_contexts_seen())[15], context(15));
  Lane::context_ends(nullptr, context(3));
  Lane::context_seen(context(16));
  ASSERT_TRUE(other_contexts_seen()) << "in the place of the one that ended";
  EXPECT_EQ((*other_contexts_seen())[3], context(16));
  Lane::context_seen(context(17));
  EXPECT_FALSE(other_contexts_seen());
}

class DependentLaunchTest : public LaneRefusalTest {
 protected:
  // A lane with a block that was handed out behind its mark.
  void SetUp() override {
    open(created);
    ASSERT_TRUE(free_is_covered());
    attributes_.back().id = cuda::kProgrammaticStreamSerialization;
    set_attributes(2);
  }
  // The last of `count` attributes permits the overlap.
  void set_attributes(unsigned count) {
    configuration_.stream = created;
    configuration_.attributes = &attributes_[attributes_.size() - count];
    configuration_.attribute_count = count;
  }
  bool is_serialised(CUstream stream = created, CUresult result = CUDA_SUCCESS,
                     bool behind_free = false) {
    const Submission submission(driver_, stream, "a call");
    const DependentLaunch launch(driver_, &configuration_, stream, behind_free);
    if (result == CUDA_SUCCESS) launch.submitted();
    known_to_be_ = launch.is_serialised();
    return launch.configuration() != &configuration_;
  }
  bool known_to_be_ = false;
  std::array<cuda::LaunchAttribute, 40> attributes_{};
  cuda::LaunchConfiguration configuration_{};
};

// The kernel before it in the lane's stream may still be the last one of the block's last owner.
TEST_F(DependentLaunchTest, OneInAnotherStreamLeavesTheLanesNextToBeSerialisedToo) {  // I1
  EXPECT_TRUE(is_serialised(second));
  EXPECT_TRUE(is_serialised());
  EXPECT_FALSE(is_serialised());
  EXPECT_TRUE(is_serialised(second)) << "the mark is awaited";
  calls.complete = true;
  EXPECT_FALSE(is_serialised(second));
}

TEST_F(DependentLaunchTest, OneThatTheDriverRefusesLeavesTheNextToBeSerialisedToo) {  // I1
  EXPECT_TRUE(is_serialised(created, CUDA_ERROR_INVALID_VALUE));
  EXPECT_TRUE(is_serialised());
  EXPECT_FALSE(is_serialised());
}

TEST_F(DependentLaunchTest, OneWithMoreAttributesThanCanBeCopiedWaitsForTheMark) {  // I1
  set_attributes(32);
  EXPECT_TRUE(is_serialised());
  EXPECT_EQ(calls.synchronised, 0);
  ASSERT_TRUE(free_is_covered());
  set_attributes(33);
  EXPECT_FALSE(is_serialised());
  EXPECT_EQ(calls.synchronised, 1) << "its kernel may begin before the one before it has ended";
}

TEST_F(DependentLaunchTest, NoneOverlapsWhereBlocksAreHandedOutWithoutAMark) {  // I1
  EXPECT_TRUE(is_serialised());
  EXPECT_FALSE(is_serialised());
  DependentLaunch::serialise_all();
  EXPECT_TRUE(is_serialised());
  EXPECT_TRUE(is_serialised());
}

// The stream is waited for, since it may have no mark. Other threads capture meanwhile.
TEST_F(DependentLaunchTest, OneThatCannotBeCopiedThenWaitsForItsStream) {  // I1
  static int streams = 0;
  static int modes = 0;
  streams = modes = 0;
  driver_.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) {
    ++modes;
    return CUDA_SUCCESS;
  };
  driver_.cuStreamSynchronize = [](CUstream stream) {
    streams += stream == created ? 1 : 0;
    EXPECT_EQ(modes % 2, 1) << "in relaxed mode";
    return CUDA_SUCCESS;
  };
  set_attributes(33);
  EXPECT_FALSE(is_serialised());
  EXPECT_EQ(streams, 0) << "its mark was waited for";
  DependentLaunch::serialise_all();
  EXPECT_FALSE(is_serialised());
  EXPECT_FALSE(is_serialised());
  EXPECT_EQ(streams, 2);
}

TEST_F(DependentLaunchTest, OneIntoACaptureLaunchesNothingYet) {
  Serving::capture_begins();
  EXPECT_FALSE(is_serialised());
  driver_.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  EXPECT_TRUE(is_serialised()) << "another stream captures";
  Serving::captures_end(1);
}

TEST_F(DependentLaunchTest, OneBesideAMarkInProgressLeavesTheNextToBeSerialisedToo) {  // I1
  EXPECT_TRUE(is_serialised());
  submit(created);
  ASSERT_TRUE(free_is_covered());
  {
    const LaneMark::Use marking;
    EXPECT_TRUE(is_serialised());
  }
  EXPECT_TRUE(is_serialised());
  EXPECT_FALSE(is_serialised());
}

// A graph may lose an edge; no launch begins too early, and none relies on this one.
TEST_F(DependentLaunchTest, OneThatMayBeIntoACaptureIsSerialisedAndSaysNothing) {  // I1
  Serving::capture_begins();
  driver_.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus*) { return CUDA_ERROR_UNKNOWN; };
  EXPECT_TRUE(is_serialised());
  EXPECT_FALSE(known_to_be_);
  Serving::captures_end(1);
  EXPECT_TRUE(is_serialised());
  EXPECT_TRUE(known_to_be_);
  EXPECT_FALSE(is_serialised());
}

// Contract 2: outside a lane, too.
TEST_F(DependentLaunchTest, OneBehindAFreeOfItsThreadIsSerialised) {
  EXPECT_TRUE(is_serialised());
  EXPECT_FALSE(is_serialised());
  EXPECT_TRUE(is_serialised(created, CUDA_SUCCESS, true));
  EXPECT_TRUE(known_to_be_);
  set_attributes(33);
  EXPECT_FALSE(is_serialised(created, CUDA_SUCCESS, true));
  EXPECT_TRUE(known_to_be_);
  EXPECT_EQ(calls.synchronised, 2) << "the mark and the stream are waited for";
}

// In another context the handle names another stream.
TEST_F(LaneRefusalTest, ALaunchIntoADefaultStreamSaysNothingOfALaneThatWasLeft) {  // I1
  cuda::LaunchAttribute attribute = {};
  attribute.id = cuda::kProgrammaticStreamSerialization;
  cuda::LaunchConfiguration configuration = {};
  configuration.stream = CU_STREAM_LEGACY;
  configuration.attributes = &attribute;
  configuration.attribute_count = 1;
  const auto is_serialised = [&] {
    const Submission submission(driver_, CU_STREAM_LEGACY, "a call");
    const DependentLaunch launch(driver_, &configuration, CU_STREAM_LEGACY, false);
    launch.submitted();
    return launch.configuration() != &configuration;
  };
  open(CU_STREAM_LEGACY);
  ASSERT_TRUE(free_is_covered());
  Lane::context_seen(other_context, Lane::Seen::current);
  ASSERT_FALSE(Lane::is_open());
  EXPECT_TRUE(is_serialised()) << "in the other context";
  EXPECT_TRUE(is_serialised()) << "in the lane's";
  calls.complete = true;
  EXPECT_FALSE(is_serialised());
}

// What tells how far the GPU is behind is left away where it cannot be had.
TEST_F(LaneRefusalTest, WithoutAnEventNoStallIsClaimed) {
  stats::DeviceStats stats;
  open(created);
  ASSERT_TRUE(free_is_covered());
  const auto free_late = [&](std::uint64_t at_ms) {
    LaneStalls::freed(driver_, one_context, created, stats, util::now_ns() + at_ms * 1'000'000);
  };
  refuses_contexts = true;
  free_late(1);
  refuses_contexts = false;
  const auto create = driver_.cuEventCreate;
  driver_.cuEventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(0xbad);
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  free_late(2);
  const int queries = calls.queries;
  free_late(3);
  EXPECT_EQ(calls.queries, queries) << "nothing is watched";
  driver_.cuEventCreate = create;
  free_late(4);
  for (std::uint64_t at_ms = 5; at_ms < 10; ++at_ms) free_late(at_ms);
  EXPECT_GT(calls.queries, queries);
  EXPECT_EQ(calls.recorded.count(reinterpret_cast<CUevent>(0xbad)), 0u);
  EXPECT_GT(stats.value(stats::Counter::frees_unwaited_busy_total), 0u);
}

TEST_F(LaneRefusalTest, WithoutEventsNoUnseenWorkIsFound) {
  std::uint64_t now = 0;
  const auto look_for_a_second = [&] {
    for (const std::uint64_t end = now + 1'000'000'000; now < end; now += 500'000) {
      if (UnseenWork::look(driver_, one_context, created, now)) return true;
    }
    return false;
  };
  calls.idle = {created};
  UnseenWork::reset();
  EXPECT_FALSE(look_for_a_second()) << "a driver without events of contexts";
  driver_.cuCtxRecordEvent = [](CUcontext, CUevent event) {
    calls.recorded[event] = nullptr;
    return CUDA_SUCCESS;
  };
  refuses_contexts = true;
  EXPECT_FALSE(look_for_a_second());
  refuses_contexts = false;
  const auto create = driver_.cuEventCreate;
  driver_.cuEventCreate = [](CUevent*, unsigned) { return CUDA_ERROR_OUT_OF_MEMORY; };
  EXPECT_FALSE(look_for_a_second());
  driver_.cuEventCreate = create;
  EXPECT_TRUE(look_for_a_second());
  UnseenWork::reset();
}

}  // namespace
}  // namespace cupool::engine
