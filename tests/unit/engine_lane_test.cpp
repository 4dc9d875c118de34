// SPDX-License-Identifier: Apache-2.0
// The lane: when a free is covered, what is asked of the driver for it, and what leaves it
// (contract 2; docs/design.md, Lanes).
#include <atomic>
#include <optional>
#include <thread>

#include "engine/reclaim/dependent_launches.h"
#include "engine/reclaim/lane_history.h"
#include "engine/reclaim/serving.h"
#include "engine/reclaim/unseen_work.h"
#include "engine_lane_fixture.h"
#include "stats/stall.h"
#include "util/clock.h"

namespace cupool::engine {
namespace {

using namespace lane_test;

// Contract 14: another thread may see what the work does before its call returns.
TEST_F(LaneTest, WorkIsPendingFromBeforeTheDriversCall) {
  open(created);
  PendingWork::Claim().settle();
  ASSERT_TRUE(PendingWork::none());
  const Submission submission(driver_, created, "a call");
  EXPECT_FALSE(PendingWork::none());
}

// A thread without points of its own: the lane's mark is any thread's.
TEST_F(LaneTest, WhatWasFreedInTheLaneIsCompleteWithItsMark) {
  using Of = ThreadOrder::Of;
  std::thread([&] {
    open(created);
    ASSERT_TRUE(free_is_covered());
    submit(second);
    EXPECT_FALSE(ThreadOrder::is_complete(driver_, Of::own_and_lane));
    EXPECT_TRUE(ThreadOrder::is_complete(driver_, Of::own));
    calls.complete = true;
    EXPECT_TRUE(ThreadOrder::is_complete(driver_, Of::own_and_lane));
    ThreadOrder::reset();  // the thread's end knows no driver here
  }).join();
}

TEST_F(LaneTest, AFreeAfterWorkMarksTheStreamOnce) {
  EXPECT_FALSE(free_is_covered()) << "nothing was submitted yet";
  open(CU_STREAM_LEGACY);
  EXPECT_TRUE(free_is_covered());
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 1);
  submit(CU_STREAM_LEGACY);
  submit(CU_STREAM_LEGACY);
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 2);
}

// The rule of stats/stall.h, by one event now and then.
TEST_F(LaneTest, CountsTheFreesBehindWhichWorkIsStillPending) {
  stats::DeviceStats stats;
  const auto avoided = [&stats] { return stats.value(stats::Counter::frees_unwaited_busy_total); };
  const auto free_behind_work = [&] {
    submit(CU_STREAM_LEGACY);
    EXPECT_TRUE(Lane::covers_free(driver_, &stats));
  };
  const auto after = [](std::uint64_t ns) {
    const std::uint64_t start = util::now_ns();
    while (util::now_ns() - start <= ns) {
    }
  };
  open(CU_STREAM_LEGACY);
  calls.complete = true;
  for (int i = 0; i < 100; ++i, after(2 * stats::kShortestStallNs)) free_behind_work();
  EXPECT_EQ(avoided(), 0u) << "the GPU keeps up";
  after(200'000);
  free_behind_work();  // its work is watched
  calls.complete = false;
  for (int i = 0; i < 50; ++i, after(2 * stats::kShortestStallNs)) free_behind_work();
  after(200'000);
  free_behind_work();
  EXPECT_GE(avoided(), 49u);
  EXPECT_LE(avoided(), 51u);
  const std::uint64_t before = avoided();
  calls.complete = true;
  after(200'000);
  for (int i = 0; i < 100; ++i, after(2 * stats::kShortestStallNs)) free_behind_work();
  EXPECT_EQ(avoided(), before) << "nobody knows of those since the last look";
}

// Beside a call under way each free marks, though the driver's free would have waited once.
TEST_F(LaneTest, CountsOneFreeBesideASubmission) {
  stats::DeviceStats stats;
  open(CU_STREAM_LEGACY);
  calls.complete = false;
  const Submission submission(driver_, CU_STREAM_LEGACY, "a call");
  for (std::uint64_t i = 0; i < 50; ++i) {
    EXPECT_TRUE(Lane::covers_free(driver_, &stats));
    const std::uint64_t start = util::now_ns();
    while (util::now_ns() - start <= 100'000) {
    }
  }
  EXPECT_EQ(calls.records, 51) << "with the event that is watched";
  EXPECT_LE(stats.value(stats::Counter::frees_unwaited_busy_total), 1u);
}

TEST_F(LaneTest, AsksForTheFreesBehindWorkLessThanOnceForEach) {
  stats::DeviceStats stats;
  open(CU_STREAM_LEGACY);
  for (int i = 0; i < 5000; ++i) {
    submit(CU_STREAM_LEGACY);
    EXPECT_TRUE(Lane::covers_free(driver_, &stats));
  }
  EXPECT_LT(calls.queries, 2500);
  EXPECT_LT(calls.records, 5000 + 250);
}

TEST_F(LaneTest, IsThatOfTheMainStream) {
  for (int i = 0; i < 20; ++i) submit(CU_STREAM_LEGACY);
  submit(second);
  EXPECT_FALSE(Lane::is_open()) << "copies, and what a library does when it is opened";
  open(created);
  EXPECT_FALSE(Lane::is_open()) << "other work is pending";
  calls.idle = {CU_STREAM_LEGACY, second};
  submit(created);
  EXPECT_TRUE(Lane::is_open());
  EXPECT_TRUE(Lane::holds(created));
}

TEST_F(LaneTest, AProgramWithoutKernelsHasOne) {
  for (int i = 0; i < 63; ++i) submit(created);
  EXPECT_FALSE(Lane::is_open());
  submit(created);
  EXPECT_TRUE(Lane::holds(created));
}

TEST_F(LaneTest, AnotherStreamWaitsUntilTheMarkIsComplete) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  submit(second);
  EXPECT_EQ(calls.waiting, second);
  EXPECT_FALSE(free_is_covered());
  submit(second);
  EXPECT_EQ(calls.waits, 2);
  calls.idle = {created};
  submit(second);
  calls.idle = {};
  submit(second);
  EXPECT_EQ(calls.waits, 2) << "the mark was seen complete";
}

TEST_F(LaneTest, NobodyWaitsIfNothingWasHandedOut) {
  open(created);
  submit(second);
  EXPECT_EQ(calls.waits, 0);
  EXPECT_FALSE(Lane::is_open());
}

TEST_F(LaneTest, TheProcessReturnsOnceTheWorkOfOthersIsComplete) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  submit(second);
  EXPECT_FALSE(returns(created));
  calls.idle = {second};
  EXPECT_TRUE(returns(created));
  const int before = calls.records;
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, before + 1) << "for the work while the process was away";
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, before + 1);
  const int waits = calls.waits;
  submit(second);
  EXPECT_EQ(calls.waits, waits + 1) << "for the mark after the return";
}

// I1: what is about to be submitted is as pending as what was.
TEST_F(LaneTest, TheProcessStaysAwayBesideACallToAnotherStream) {
  open(created);
  calls.complete = true;
  {
    const Submission submission(driver_, second, "a call");
    EXPECT_FALSE(returns(created));
  }
  EXPECT_TRUE(returns(created));
}

// I1: a call that began while the process was away may end after the next mark.
TEST_F(LaneTest, WorkOfTheLaneThatBeganWhileAwayIsMarked) {
  calls.complete = true;
  open(created);
  submit(second);
  std::optional<Submission> slow;
  calls.complete = false;
  slow.emplace(driver_, created, "a call");
  calls.complete = true;
  ASSERT_TRUE(returns(created));
  ASSERT_TRUE(free_is_covered());
  const int before = calls.records;
  slow.reset();
  ASSERT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, before + 1);
}

TEST_F(LaneTest, WhatGoesToOthersTooOftenLeavesItForGood) {
  calls.complete = true;
  open(created);
  int visits = 0;
  while (visits < 100'000 && !Lane::is_over()) {
    submit(second);
    if (!Lane::is_over()) submit(created);
    ++visits;
  }
  EXPECT_GE(visits, 900);
  EXPECT_TRUE(Lane::is_over());
}

TEST_F(LaneTest, SoDoManyStreamsAtOnceAndOtherContexts) {
  open(created);
  for (std::uintptr_t i = 0; i < 9 && !Lane::is_over(); ++i) {
    submit(reinterpret_cast<CUstream>(0x10000 + 0x100 * i));
  }
  EXPECT_TRUE(Lane::is_over());
  Lane::reset();
  open(created);
  driver_.cuStreamGetCtx = [](CUstream, CUcontext* context) {
    *context = other_context;
    return CUDA_SUCCESS;
  };
  submit(second);
  EXPECT_TRUE(Lane::is_over());
}

TEST_F(LaneTest, AnEventThatIsRefusedLeavesItForGood) {
  open(created);
  calls.record = CUDA_ERROR_UNKNOWN;
  submit(second);
  calls.complete = true;
  EXPECT_FALSE(returns(created));
  submit(second);
  EXPECT_TRUE(Lane::is_over());
}

TEST_F(LaneTest, ARefusedMarkLeavesItAndTheStreamIsWaitedFor) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  submit(created);
  calls.record = CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(free_is_covered());
  EXPECT_FALSE(Lane::is_open());
  submit(second);
  EXPECT_EQ(calls.waits, 0);
  EXPECT_EQ(calls.synchronised, 1);
}

TEST_F(LaneTest, PerThreadStreamsAndSecondContextsHaveNone) {
  submit(CU_STREAM_PER_THREAD);
  EXPECT_TRUE(Lane::is_over());
  Lane::reset();
  open(CU_STREAM_LEGACY);
  submit(CU_STREAM_PER_THREAD);
  EXPECT_TRUE(Lane::is_over());
  Lane::reset();
  Lane::context_seen(one_context);
  open(CU_STREAM_LEGACY);
  Lane::context_seen(one_context);
  EXPECT_TRUE(Lane::is_open());
  Lane::context_seen(other_context);
  EXPECT_FALSE(Lane::is_open());
}

// What a report says of it (docs/statistics.md, The one lane).
TEST_F(LaneTest, ItsHistoryFollowsIt) {
  // At times that grow by more than a tick of the clock.
  std::uint64_t later_ns = 0;
  const auto history = [&] { return LaneHistory::read(util::now_ns() + (later_ns += 1000)); };
  EXPECT_FALSE(history());
  open(created);
  ASSERT_TRUE(history());
  const std::uint64_t inside = history()->inside_ns;
  EXPECT_GT(history()->inside_ns, inside);
  ASSERT_TRUE(free_is_covered());
  submit(second);
  submit(second);
  EXPECT_EQ(history()->away, 1u) << "the second call found the process away";
  EXPECT_STREQ(history()->last_call, "a call");
  const std::uint64_t before = history()->inside_ns;
  EXPECT_EQ(history()->inside_ns, before) << "away";
  calls.idle = {second};
  ASSERT_TRUE(returns(created));
  EXPECT_GT(history()->inside_ns, before);
  EXPECT_EQ(history()->end, nullptr);
  Lane::context_seen(other_context);
  EXPECT_STREQ(history()->end, "another context");
  EXPECT_EQ(history()->end_call, nullptr);
  Lane::leave(Lane::End::destroyed, "later");
  EXPECT_EQ(history()->end_call, nullptr) << "it ends once";
}

TEST_F(LaneTest, WhatACaptureRecordsIsNoWork) {
  open(created);
  Serving::capture_begins();
  submit(second);
  EXPECT_TRUE(Lane::is_open());
  submit(created);
  EXPECT_FALSE(Lane::covers_free(driver_)) << "a mark would be captured";
  EXPECT_EQ(calls.records, 0);
  Serving::captures_end(1);
  EXPECT_TRUE(Lane::covers_free(driver_));
}

TEST_F(LaneTest, TheEndOfItsContextWaitsForTheMark) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  Lane::context_ends(&driver_, other_context);
  EXPECT_TRUE(Lane::is_open());
  Lane::context_ends(&driver_, one_context);
  EXPECT_EQ(calls.synchronised, 1);
  submit(second);
  EXPECT_EQ(calls.waits, 0) << "the event is gone";
}

// Nor is anything asked of an event that is gone with it.
TEST_F(LaneTest, AContextThatHasEndedIsNotWaitedFor) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  Lane::context_ends(nullptr, one_context);
  EXPECT_TRUE(Lane::is_over());
  EXPECT_EQ(calls.synchronised, 0);
}

// The first dependent launch after a mark must not begin early; the attribute is taken off a copy.
TEST_F(LaneTest, TheFirstDependentLaunchAfterAMarkIsSerialised) {
  open(created);
  cuda::LaunchAttribute attributes[2] = {};
  attributes[0].id = 4;
  attributes[1].id = cuda::kProgrammaticStreamSerialization;
  cuda::LaunchConfiguration configuration = {};
  configuration.stream = created;
  configuration.attributes = attributes;
  configuration.attribute_count = 2;
  const auto is_serialised = [&] {
    const Submission submission(driver_, created, "a call");
    const DependentLaunch launch(driver_, &configuration, created, false);
    launch.submitted();
    const auto* given = static_cast<const cuda::LaunchConfiguration*>(launch.configuration());
    if (given == &configuration) return false;
    EXPECT_EQ(given->attribute_count, 1u);
    EXPECT_EQ(given->attributes[0].id, 4);
    EXPECT_EQ(given->stream, created);
    return true;
  };
  EXPECT_FALSE(is_serialised());
  ASSERT_TRUE(free_is_covered());
  EXPECT_TRUE(is_serialised());
  EXPECT_FALSE(is_serialised()) << "overlaps with the launch before it only";
  ASSERT_TRUE(free_is_covered());
  EXPECT_TRUE(is_serialised());
  attributes[1].id = 4;
  ASSERT_TRUE(free_is_covered());
  EXPECT_FALSE(is_serialised()) << "begins behind the kernel before it anyway";
}

TEST_F(LaneTest, AWaitForTheStreamMakesAMarkUnnecessary) {
  open(created);
  {
    LaneWork::Claim wait(true);
    EXPECT_TRUE(LaneWork::any()) << "not yet complete";
    wait.settle();
  }
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 0);
  submit(created);
  LaneWork::Claim failed(true);
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 1);
  submit(created);
  LaneWork::Claim of_another_stream(false);
  of_another_stream.settle();
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 2);
}

// I1: the GPU may begin with work, and another thread see that, before the call that submits it
// returns.
TEST_F(LaneTest, NothingIsCoveredBesideASubmission) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  ASSERT_FALSE(LaneWork::any());
  {
    const Submission submission(driver_, created, "a call");
    EXPECT_TRUE(LaneWork::any()) << "known before the driver's call";
    ASSERT_TRUE(free_is_covered());
    EXPECT_EQ(calls.records, 2);
    EXPECT_TRUE(LaneWork::any()) << "the mark may have come before the work";
    ASSERT_TRUE(free_is_covered());
    EXPECT_EQ(calls.records, 3);
  }
  ASSERT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 4);
  ASSERT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 4) << "no call is under way any more";
}

// I1: nor does it cover what comes later, whichever of several waits ends first.
TEST_F(LaneTest, AWaitDoesNotCoverWorkThatComesMeanwhile) {
  open(created);
  LaneWork::Claim first(true);
  submit(created);
  LaneWork::Claim second_one(true);
  first.settle();
  EXPECT_TRUE(LaneWork::any());
  submit(created);
  second_one.settle();
  EXPECT_TRUE(LaneWork::any());
  LaneWork::Claim third(true);
  LaneWork::Claim beside(true);
  third.settle();
  EXPECT_FALSE(LaneWork::any());
  submit(created);
  beside.settle();
  EXPECT_TRUE(LaneWork::any());
}

// The context's event stays pending although the stream's is complete: another stream has work.
TEST_F(LaneTest, WorkThatCameByNoHookedRouteIsFound) {
  driver_.cuCtxRecordEvent = [](CUcontext, CUevent event) {
    calls.recorded[event] = nullptr;
    return CUDA_SUCCESS;
  };
  std::uint64_t now = 0;
  const auto look_for_a_second = [&] {
    for (const std::uint64_t end = now + 1'000'000'000; now < end; now += 500'000) {
      if (UnseenWork::look(driver_, one_context, created, now)) return true;
    }
    return false;
  };
  UnseenWork::reset();
  EXPECT_FALSE(look_for_a_second()) << "nothing is complete yet";
  calls.idle = {created, nullptr};
  EXPECT_FALSE(look_for_a_second());
  calls.idle = {created};
  EXPECT_TRUE(look_for_a_second());
  UnseenWork::reset();
}

// A mark in progress may take long, if the stream's queue is full. It covers nobody, and nobody
// waits for it.
TEST_F(LaneTest, AMarkInProgressCoversNoFree) {
  static std::atomic<bool> recording{false};
  static std::atomic<bool> go_on{false};
  recording = go_on = false;
  open(created);
  ASSERT_TRUE(free_is_covered());
  submit(created);
  driver_.cuEventRecord = [](CUevent, CUstream stream) {
    if (stream != created || recording.exchange(true)) return CUDA_SUCCESS;
    while (!go_on) std::this_thread::yield();
    return CUDA_SUCCESS;
  };
  bool covered = true;
  std::thread freeing([&] { covered = Lane::covers_free(driver_); });
  while (!recording) std::this_thread::yield();
  EXPECT_TRUE(LaneWork::any()) << "another free marks by itself";
  submit(second);
  EXPECT_EQ(calls.waits, 1);
  go_on = true;
  freeing.join();
  EXPECT_FALSE(covered) << "the lane was left";
}

// A thread that ends leaves its work to the next free unless a mark that is awaited covers it.
TEST_F(LaneTest, AMarkBesideWhichTheLaneIsLeftCoversNoWork) {
  open(created);
  ASSERT_TRUE(free_is_covered());
  submit(created);
  driver_.cuEventRecord = [](CUevent, CUstream) {
    Lane::context_seen(other_context);
    return CUDA_SUCCESS;
  };
  EXPECT_FALSE(Lane::covers_free(driver_));
  EXPECT_TRUE(LaneWork::any());
}

}  // namespace
}  // namespace cupool::engine
