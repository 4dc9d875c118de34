// SPDX-License-Identifier: Apache-2.0
// The lane beside streams that the program destroys, whose handles the driver may give to others
// (contract 2; docs/design.md, Lanes).
#include <atomic>
#include <future>
#include <thread>

#include "engine/reclaim/serving.h"
#include "engine/reclaim/stream_use.h"
#include "engine_lane_fixture.h"

namespace cupool::engine {
namespace {

using namespace lane_test;

class LaneDestroyedTest : public LaneTest {};

// I1: its handle may name another stream, whose event says nothing about the first one's work.
TEST_F(LaneDestroyedTest, TheWorkOfADestroyedStreamIsStillPending) {
  open(created);
  submit(second);
  const CUevent first = calls.recorded.rbegin()->first;
  Lane::destroys(second);
  submit(second);
  const CUevent other = calls.recorded.rbegin()->first;
  EXPECT_NE(first, other);
  calls.recorded[first] = reinterpret_cast<CUstream>(0x9000);
  calls.idle = {second};
  EXPECT_FALSE(returns(created));
  calls.idle.insert(reinterpret_cast<CUstream>(0x9000));
  EXPECT_TRUE(returns(created));
}

// The driver crashes on a destroyed handle. A callback may let another thread destroy its stream
// before the call returns that submitted it.
TEST_F(LaneDestroyedTest, NoEventIsRecordedOnADestroyedStream) {
  for (const bool is_over : {false, true}) {
    SCOPED_TRACE(is_over);
    Lane::reset();
    calls = Calls{};
    open(created);
    {
      const Submission submission(driver_, second, "a call");
      if (is_over) Lane::leave(Lane::End::unknown_work);
      Lane::destroys(second);
    }
    for (const auto& [event, stream] : calls.recorded) EXPECT_NE(stream, second);
  }
}

// I6: in a forked child another thread's lock is held for ever.
TEST_F(LaneDestroyedTest, AForkedChildDestroysItsStreamsWithoutTheLock) {
  static std::atomic<bool> asking{false};
  static std::atomic<bool> go_on{false};
  asking = go_on = false;
  open(created);
  submit(second);
  driver_.cuEventQuery = [](CUevent) {
    asking = true;
    while (!go_on) std::this_thread::yield();
    return CUDA_SUCCESS;
  };
  std::thread holding([&] {
    while (!asking) submit(created);
    ThreadOrder::thread_ends(driver_);
  });
  while (!asking) std::this_thread::yield();
  Lane::end_without_lock();
  auto destroyed = std::async(std::launch::async, [] { Lane::destroys(second); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  go_on = true;
  holding.join();
}

TEST_F(LaneDestroyedTest, ADestructionWaitsForTheEventBehindACall) {
  static std::atomic<bool> recording{false};
  static std::atomic<bool> go_on{false};
  recording = go_on = false;
  open(created);
  driver_.cuEventRecord = [](CUevent, CUstream stream) {
    if (stream != second) return CUDA_SUCCESS;
    recording = true;
    while (!go_on) std::this_thread::yield();
    return CUDA_SUCCESS;
  };
  std::atomic<bool> destroyed{false};
  std::thread submitting([&] {
    submit(second);
    ThreadOrder::thread_ends(driver_);
  });
  while (!recording) std::this_thread::yield();
  std::thread destroying([&] {
    Lane::destroys(second);
    StreamUse::wait_for_others(second);
    destroyed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(destroyed);
  go_on = true;
  submitting.join();
  destroying.join();
}

// I3: nor on one that another thread has begun to capture meanwhile.
TEST_F(LaneDestroyedTest, NoEventIsRecordedIntoACaptureThatBeganMeanwhile) {
  open(created);
  {
    const Submission submission(driver_, second, "a call");
    Serving::capture_begins();
  }
  Serving::captures_end(1);
  for (const auto& [event, stream] : calls.recorded) EXPECT_NE(stream, second);
  calls.complete = true;
  EXPECT_FALSE(returns(created)) << "that work is behind no event";
}

}  // namespace
}  // namespace cupool::engine
