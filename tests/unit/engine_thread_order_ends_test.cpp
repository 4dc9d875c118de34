// SPDX-License-Identifier: Apache-2.0
// The order behind frees beside ends: of threads with work behind no free, and of contexts with
// points.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "empty_heap.h"
#include "engine/reclaim/lane_mark.h"
#include "engine/reclaim/lane_work.h"
#include "engine_thread_order_fixture.h"

namespace cupool::engine {
namespace {

using namespace thread_order_test;

class ThreadOrderEndsTest : public ThreadOrderTest {};

TEST_F(ThreadOrderEndsTest, AThreadThatEndsLeavesItsWorkToTheNextFree) {
  in_thread([&] {
    submit(1);
    ThreadOrder::thread_ends(*driver_);
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_TRUE(ThreadOrder::has_work());
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 1);
  EXPECT_FALSE(ThreadOrder::has_work());
  in_thread([&] {
    submit(1);
    EXPECT_TRUE(frees());
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_FALSE(ThreadOrder::has_work()) << "that one has freed";
}

TEST_F(ThreadOrderEndsTest, AThreadThatEndsLeavesItsWorkInTheLaneToTheNextFree) {
  in_thread([&] {
    ThreadOrder::submits_in_lane();
    LaneWork::submitted();
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_TRUE(ThreadOrder::has_work());
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 1);
  EXPECT_FALSE(ThreadOrder::has_work());
}

// It has freed in the lane, and an event of another thread comes behind that, too.
TEST_F(ThreadOrderEndsTest, AThreadThatEndsLeavesAPendingMarkToOthers) {
  const auto end_in_lane = [&] {
    ThreadOrder::submits_in_lane();
    ThreadOrder::thread_ends(*driver_);
  };
  LaneWork::reset();
  LaneMark::begin(context_->handle(), stream(1));
  LaneMark::count();
  ASSERT_TRUE(LaneMark::record(*driver_));
  in_thread(end_in_lane);
  EXPECT_FALSE(ThreadOrder::has_work()) << "the mark is complete";
  LaneMark::count();
  ASSERT_TRUE(LaneMark::record(*driver_));
  gpu.work.store(Work::held);
  in_thread(end_in_lane);
  EXPECT_TRUE(ThreadOrder::has_work());
  gpu.finish();
}

// Without host memory for what it has to remember, its next free waits.
TEST_F(ThreadOrderEndsTest, AThreadWithoutAStateWaits) {
  in_thread([&] {  // the settings are read before
    EXPECT_TRUE(frees());
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_FALSE(ThreadOrder::has_work());
  for (const bool known : {true, false}) {
    in_thread([&] {
      const test::EmptyHeap none;
      known ? submit(1) : ThreadOrder::submits_unknown(*driver_);
      EXPECT_TRUE(ThreadOrder::has_work()) << known;
      EXPECT_FALSE(frees()) << known;
      known ? submit(1) : ThreadOrder::submits_unknown(*driver_);
      ThreadOrder::thread_ends(*driver_);
    });
    EXPECT_TRUE(ThreadOrder::has_work()) << "it has ended with work, " << known;
    EXPECT_TRUE(frees());
  }
}

TEST_F(ThreadOrderEndsTest, AThreadThatEndsLeavesWorkOfUnknownStreamsToTheNextFree) {
  in_thread([&] {
    ThreadOrder::submits_unknown(*driver_);
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_TRUE(ThreadOrder::has_work());
}

// Work in a lane whose stream is destroyed has no stream, and a free in another context covers
// none.
TEST_F(ThreadOrderEndsTest, AFreeInAnotherContextLeavesWorkOfADestroyedStreamToTheNextOne) {
  Context& other = other_context(1);
  Lane::context_seen(context_->handle());
  Lane::context_seen(other.handle());
  LaneWork::reset();
  in_thread([&] {
    ThreadOrder::submits_in_lane();
    EXPECT_TRUE(ThreadOrder::frees(*driver_, other));
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_TRUE(ThreadOrder::has_work());
}

// There are entries for eight contexts.
TEST_F(ThreadOrderEndsTest, AThreadLeavesTheWorkOfAContextThatHasLostItsEntry) {
  in_thread([&] {
    std::vector<Context*> contexts;
    for (std::uintptr_t i = 1; i <= 9; ++i) {
      contexts.push_back(&other_context(i));
      Lane::context_seen(contexts.back()->handle());
      if (i == 9) break;
      submit(i);
      ThreadOrder::destroys_stream();
    }
    EXPECT_TRUE(ThreadOrder::frees(*driver_, *contexts.back())) << "it takes the first one's entry";
    for (std::size_t i = 1; i < 8; ++i)
      EXPECT_TRUE(ThreadOrder::frees(*driver_, *contexts[i])) << i;
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_TRUE(ThreadOrder::has_work()) << "of the first";
}

TEST_F(ThreadOrderEndsTest, NobodyWaitsForAPointOfAContextThatHasEnded) {  // contract 10
  submit(1);
  ASSERT_TRUE(frees());
  gpu.work.store(Work::held);
  context_->set_gone_untouched();
  submit(2);
  EXPECT_EQ(order.waits, 0);
  EXPECT_TRUE(ThreadOrder::is_complete(*driver_, ThreadOrder::Of::own));
}

// The end of a context waits for the points, and a thread for no more of it.
TEST_F(ThreadOrderEndsTest, NobodyWaitsForTheEndOfAContextWhosePointsAreComplete) {  // I8
  submit(1);
  ASSERT_TRUE(frees());
  ContextEnd end(*context_);
  in_thread([&] { context_->threads().points().wait(*driver_); });
  EXPECT_TRUE(ThreadOrder::is_complete(*driver_, ThreadOrder::Of::own));
}

TEST_F(ThreadOrderEndsTest, WhoIsBehindAPointWaitsForItBesideTheEndOfItsContext) {  // I8
  submit(1);
  ASSERT_TRUE(frees());
  gpu.work.store(Work::held);
  ContextEnd end(*context_);
  std::atomic<bool> ended{false};
  std::thread ending([&] {
    const std::uint64_t asked = gpu.queries.load();
    std::thread work([&] {
      while (gpu.queries.load() < asked + 2) std::this_thread::yield();
      ended = true;
      gpu.finish();
    });
    context_->threads().points().wait(*driver_);
    work.join();
  });
  EXPECT_TRUE(ThreadOrder::is_complete(*driver_, ThreadOrder::Of::own));
  EXPECT_TRUE(ended);
  ending.join();
}

TEST_F(ThreadOrderEndsTest, WhereFreesWaitAThreadEndsAtOnce) {
  in_thread([&] {
    submit(1);
    EXPECT_TRUE(frees());
    submit(1);
    gpu.work.store(Work::held);
    ThreadOrder::stop();
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_FALSE(ThreadOrder::has_work());
}

TEST_F(ThreadOrderEndsTest, AThreadThatHasWaitedLeavesNothing) {
  LaneWork::reset();
  in_thread([&] {
    ThreadOrder::submits_in_lane();  // and that is behind the mark, or complete
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_FALSE(ThreadOrder::has_work());
  in_thread([&] {
    ThreadOrder::submits_unknown(*driver_);
    ThreadOrder::has_waited_for_context(context_->handle());
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_FALSE(ThreadOrder::has_work());
  // Nor does one that has covered what another one left.
  in_thread([&] {
    submit(1);
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_TRUE(frees());
  in_thread([&] {
    EXPECT_TRUE(ThreadOrder::has_work()) << "of the one before";
    EXPECT_TRUE(frees());
    submit(1);
    ThreadOrder::has_waited_for(stream(1));
    ThreadOrder::thread_ends(*driver_);
  });
  EXPECT_FALSE(ThreadOrder::has_work());
}

}  // namespace
}  // namespace cupool::engine
