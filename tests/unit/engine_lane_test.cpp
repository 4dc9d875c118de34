// SPDX-License-Identifier: Apache-2.0
// The lane: when a free is covered, what is asked of the driver for it, and what leaves it
// (contract 2; docs/design.md, Lanes).
#include "engine/reclaim/lane.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine/reclaim/dependent_launches.h"
#include "engine/reclaim/serving.h"

namespace cupool::engine {
namespace {

// A driver that counts. Its events are complete when `complete` says so.
struct Calls {
  int records = 0;
  int waits = 0;
  int synchronised = 0;
  bool complete = false;
  CUresult record = CUDA_SUCCESS;
  CUstream waiting = nullptr;
};
Calls calls;
const auto one_context = reinterpret_cast<CUcontext>(0x10000);
const auto other_context = reinterpret_cast<CUcontext>(0x20000);
const auto created = reinterpret_cast<CUstream>(0x5000);
const auto second = reinterpret_cast<CUstream>(0x6000);

class LaneTest : public testing::Test {
 protected:
  LaneTest() {
    Lane::reset();
    calls = Calls{};
    driver_.cuCtxGetCurrent = [](CUcontext* context) {
      *context = one_context;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = one_context;
      return CUDA_SUCCESS;
    };
    driver_.cuEventCreate = [](CUevent* event, unsigned) {
      *event = reinterpret_cast<CUevent>(0x7000);
      return CUDA_SUCCESS;
    };
    driver_.cuEventRecord = [](CUevent, CUstream) {
      ++calls.records;
      return calls.record;
    };
    driver_.cuEventQuery = [](CUevent) {
      return calls.complete ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    driver_.cuEventSynchronize = [](CUevent) {
      ++calls.synchronised;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamSynchronize = [](CUstream) {
      ++calls.synchronised;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamWaitEvent = [](CUstream stream, CUevent, unsigned) {
      ++calls.waits;
      calls.waiting = stream;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
      *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
      return CUDA_SUCCESS;
    };
  }
  ~LaneTest() override { Lane::reset(); }

  void submit(CUstream stream) { const Submission submission(driver_, stream); }
  bool free_is_covered() { return Lane::covers_free_at_once() || Lane::covers_free(driver_); }

  cuda::Driver driver_{};
};

TEST_F(LaneTest, AFreeAfterWorkMarksTheStreamOnce) {
  EXPECT_FALSE(free_is_covered()) << "nothing was submitted yet";
  submit(CU_STREAM_LEGACY);
  EXPECT_TRUE(free_is_covered());
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 1);
  submit(CU_STREAM_LEGACY);
  submit(CU_STREAM_LEGACY);
  EXPECT_TRUE(free_is_covered());
  EXPECT_EQ(calls.records, 2);
}

TEST_F(LaneTest, ASecondStreamLeavesItAndWaitsUntilTheMarkIsComplete) {
  submit(created);
  ASSERT_TRUE(free_is_covered());
  submit(second);
  EXPECT_EQ(calls.waiting, second);
  EXPECT_FALSE(free_is_covered());
  submit(second);
  EXPECT_EQ(calls.waits, 2);
  calls.complete = true;
  submit(second);
  calls.complete = false;
  submit(second);
  EXPECT_EQ(calls.waits, 2) << "the mark was seen complete";
  EXPECT_TRUE(Lane::is_over());
}

TEST_F(LaneTest, NobodyWaitsIfNothingWasHandedOut) {
  submit(created);
  submit(second);
  EXPECT_EQ(calls.waits, 0);
  EXPECT_TRUE(Lane::is_over());
}

TEST_F(LaneTest, ARefusedMarkLeavesItAndTheStreamIsWaitedFor) {
  submit(created);
  ASSERT_TRUE(free_is_covered());
  submit(created);
  calls.record = CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(free_is_covered());
  submit(second);
  EXPECT_EQ(calls.waits, 0);
  EXPECT_EQ(calls.synchronised, 1);
}

TEST_F(LaneTest, PerThreadStreamsAndSecondContextsHaveNone) {
  submit(CU_STREAM_PER_THREAD);
  EXPECT_FALSE(Lane::is_open());
  Lane::reset();
  Lane::context_seen(one_context);
  submit(CU_STREAM_LEGACY);
  Lane::context_seen(one_context);
  EXPECT_TRUE(Lane::is_open());
  Lane::context_seen(other_context);
  EXPECT_FALSE(Lane::is_open());
}

TEST_F(LaneTest, WhatACaptureRecordsIsNoWork) {
  submit(created);
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
  submit(created);
  ASSERT_TRUE(free_is_covered());
  Lane::context_ends(driver_, other_context);
  EXPECT_TRUE(Lane::is_open());
  Lane::context_ends(driver_, one_context);
  EXPECT_EQ(calls.synchronised, 1);
  submit(second);
  EXPECT_EQ(calls.waits, 0) << "the event is gone";
}

// The first dependent launch after a mark must not begin early; the attribute is taken off a copy.
TEST_F(LaneTest, TheFirstDependentLaunchAfterAMarkIsSerialised) {
  cuda::LaunchAttribute attributes[2] = {};
  attributes[0].id = 4;
  attributes[1].id = cuda::kProgrammaticStreamSerialization;
  cuda::LaunchConfiguration configuration = {};
  configuration.stream = created;
  configuration.attributes = attributes;
  configuration.attribute_count = 2;
  const auto is_serialised = [&] {
    const Submission submission(driver_, created);
    const DependentLaunch launch(driver_, &configuration, created);
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

// Threads that free beside the one that leaves: whoever is told that its free is covered began
// before the mark that the others wait for.
TEST_F(LaneTest, ALeavingThreadWaitsForMarksThatHaveBegun) {
  static std::atomic<bool> recording{false};
  static std::atomic<bool> go_on{false};
  recording = go_on = false;
  driver_.cuEventRecord = [](CUevent, CUstream) {
    recording = true;
    while (!go_on) std::this_thread::yield();
    return CUDA_SUCCESS;
  };
  submit(created);
  std::thread freeing([&] { Lane::covers_free(driver_); });
  while (!recording) std::this_thread::yield();
  std::atomic<bool> left{false};
  std::thread leaving([&] {
    submit(second);
    left = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(left);
  go_on = true;
  freeing.join();
  leaving.join();
  EXPECT_EQ(calls.waits, 1);
}

}  // namespace
}  // namespace cupool::engine
