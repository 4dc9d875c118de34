// SPDX-License-Identifier: Apache-2.0
// What a thread does next comes behind its work before a free (contract 2): by points on its
// streams, by one of the whole context where the streams are not known, or by a wait where the
// driver refuses both.
#include "engine/context/thread_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "engine/reclaim/serving.h"
#include "engine_thread_order_fixture.h"

namespace cupool::engine {
namespace {

using namespace thread_order_test;

TEST_F(ThreadOrderTest, AnotherStreamWaitsForThePointOfAFreeOnce) {
  EXPECT_FALSE(ThreadOrder::has_work());
  submit(1);
  EXPECT_TRUE(ThreadOrder::has_work());
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 1);
  EXPECT_FALSE(ThreadOrder::has_work());
  submit(1);
  EXPECT_EQ(order.waits, 0) << "it comes behind its own work";
  submit(2);
  submit(2);
  EXPECT_EQ(order.waits, 1);
  EXPECT_EQ(order.waiting, stream(2));
}

// Contract 2: each stream's first one behind a free comes behind the work before it.
TEST_F(ThreadOrderTest, ADependentLaunchIsTheFirstInItsStreamBehindAFree) {
  const auto is_first = [&](std::uintptr_t number) {
    submit(number);
    const bool first = LaunchOrder::is_first(*driver_, stream(number));
    if (first) LaunchOrder::submitted(*driver_, stream(number));
    return first;
  };
  gpu.work.store(Work::held);
  EXPECT_FALSE(is_first(1)) << "nothing was freed";
  EXPECT_TRUE(frees());
  EXPECT_TRUE(is_first(1));
  EXPECT_FALSE(is_first(1));
  EXPECT_TRUE(is_first(2));
  EXPECT_FALSE(is_first(1));
  EXPECT_FALSE(is_first(2));
  EXPECT_TRUE(frees());
  submit(1);
  EXPECT_TRUE(LaunchOrder::is_first(*driver_, stream(1)));
  EXPECT_TRUE(LaunchOrder::is_first(*driver_, stream(1))) << "the driver refused the one before";
  ThreadOrder::destroys_stream();
  EXPECT_TRUE(is_first(1)) << "perhaps another stream";
  EXPECT_FALSE(is_first(1));
  ThreadOrder::destroys_stream();
  gpu.work.store(Work::none);
  EXPECT_FALSE(is_first(1)) << "all that came before is complete";
  EXPECT_FALSE(is_first(3));
  gpu.work.store(Work::held);
  EXPECT_TRUE(frees());
  EXPECT_TRUE(is_first(3));
  ThreadOrder::stop();
  EXPECT_FALSE(is_first(1)) << "frees wait";
}

TEST_F(ThreadOrderTest, WhatAStreamCannotWaitForTheHostDoes) {
  submit(1);
  ASSERT_TRUE(frees());
  order.wait = CUDA_ERROR_UNKNOWN;
  gpu.work.store(Work::held);
  EXPECT_FALSE(ThreadOrder::is_complete(*driver_, ThreadOrder::Of::own));
  // The GPU goes on once the host asks it.
  const std::uint64_t asked = gpu.queries.load();
  std::atomic<bool> returned{false};
  std::thread work([&] {
    while (gpu.queries.load() == asked && !returned) std::this_thread::yield();
    if (!returned) gpu.finish();
  });
  submit(2);
  returned = true;
  work.join();
  EXPECT_TRUE(ThreadOrder::is_complete(*driver_, ThreadOrder::Of::own));
}

TEST_F(ThreadOrderTest, AFreeWaitsWhereItsPointIsRefused) {
  submit(1);
  for (CUresult* const refused : {&order.create, &order.record, &order.current}) {
    *refused = CUDA_ERROR_UNKNOWN;
    EXPECT_FALSE(frees());
    EXPECT_TRUE(ThreadOrder::has_work()) << "the next free looks again";
    *refused = CUDA_SUCCESS;
  }
  Serving::capture_begins();
  EXPECT_FALSE(frees()) << "an event may be captured";
  Serving::captures_end(1);
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 1);
}

TEST_F(ThreadOrderTest, TooManyStreamsAreMarkedByTheirContext) {
  for (std::uintptr_t i = 1; i <= 17; ++i) submit(i);
  EXPECT_TRUE(frees());
  EXPECT_GT(order.of_context, 0);
  submit(18);
  order.record_context = CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(frees());
  order.record_context = CUDA_SUCCESS;
  EXPECT_TRUE(frees());
  driver_->cuCtxRecordEvent = nullptr;
  submit(19);
  EXPECT_FALSE(frees()) << "an old driver";
}

TEST_F(ThreadOrderTest, UnknownWorkIsMarkedByTheContext) {
  submit(1);
  ASSERT_TRUE(frees());
  ThreadOrder::submits_unknown(*driver_);
  EXPECT_TRUE(ThreadOrder::has_work());
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 1);
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 1) << "once";
  submit(2);
  EXPECT_EQ(order.waits, 1);
}

TEST_F(ThreadOrderTest, SoIsThatOfADestroyedStream) {
  submit(1);
  ThreadOrder::destroys_stream();
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 0) << "its handle may name another";
  EXPECT_EQ(order.of_context, 1);
}

TEST_F(ThreadOrderTest, SoIsThatOfAStreamWhoseContextIsNotTold) {
  order.stream_context = CUDA_ERROR_UNKNOWN;
  submit(1);
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 0);
  EXPECT_TRUE(ThreadOrder::has_work()) << "it may be of another context";
  ThreadOrder::destroys_stream();
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 1);
}

TEST_F(ThreadOrderTest, WhatWasWaitedForNeedsNoPoint) {
  submit(1);
  ThreadOrder::has_waited_for(stream(2));
  ThreadOrder::has_waited_for(stream(1));
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 0);
  submit(1);
  ThreadOrder::has_waited_for_context(nullptr);
  ThreadOrder::has_waited_for_context(context_->handle());
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 0);
}

TEST_F(ThreadOrderTest, ManyThreadsThatGoFromStreamToStreamWaitOnTheHost) {
  std::atomic<int> gone{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (std::uintptr_t i = 0; i < 5; ++i) {
    threads.emplace_back([&, i] {
      submit(2 * i);
      EXPECT_TRUE(frees());
      submit(2 * i + 1);
      ++gone;
      while (!end) std::this_thread::yield();
      ThreadOrder::thread_ends(*driver_);
    });
    while (gone <= static_cast<int>(i)) std::this_thread::yield();
    EXPECT_EQ(order.synchronised, i < 4 ? 0 : 1) << i;
  }
  end = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order.waits, 4);
}

TEST_F(ThreadOrderTest, WhereFreesWaitThereIsNoOrder) {
  submit(1);
  ThreadOrder::stop();
  EXPECT_TRUE(frees());
  EXPECT_FALSE(ThreadOrder::has_work());
  submit(2);
  ThreadOrder::submits_unknown(*driver_);
  ThreadOrder::destroys_stream();
  EXPECT_FALSE(ThreadOrder::is_on());
  EXPECT_FALSE(ThreadOrder::has_work());
  EXPECT_EQ(order.records + order.of_context, 0);
}

TEST_F(ThreadOrderTest, AStreamThatCapturesIsLeftAlone) {  // I3
  submit(1);
  ASSERT_TRUE(frees());
  driver_->cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
  };
  Serving::capture_begins();
  submit(2);
  EXPECT_EQ(order.waits, 0);
  Serving::captures_end(1);
  EXPECT_FALSE(ThreadOrder::has_work()) << "it is not submitted";
  submit(2);
  EXPECT_EQ(order.waits, 1);
}

// More threads than wait on the device, of which one goes to another context, and one has lost its
// own: an event of a context that has ended must not be used, and one of another context only in a
// visit.
TEST_F(ThreadOrderTest, ManyThreadsWaitOnTheHostInTheirOwnLivingContextsOnly) {
  other_context(90);
  std::atomic<int> gone{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (std::uintptr_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      submit(2 * i);
      EXPECT_TRUE(frees());
      submit(2 * i + 1);
      ++gone;
      while (!end) std::this_thread::yield();
      ThreadOrder::thread_ends(*driver_);
    });
  }
  while (gone < 4) std::this_thread::yield();
  in_thread([&] {
    submit(10);
    EXPECT_TRUE(frees());
    submit(90);
    EXPECT_EQ(order.synchronised, 0) << "of another context: on the host, by queries";
    EXPECT_EQ(order.waits, 4);
    ThreadOrder::thread_ends(*driver_);
  });
  order.synchronised = 0;
  in_thread([&] {
    submit(10);
    EXPECT_TRUE(frees());
    context_->set_gone_untouched();
    submit(11);
    EXPECT_EQ(order.synchronised, 0);
    EXPECT_EQ(order.waits, 4) << "there is nothing to wait for";
    ThreadOrder::thread_ends(*driver_);
  });
  end = true;
  for (std::thread& thread : threads) thread.join();
}

// There are entries for eight contexts.
TEST_F(ThreadOrderTest, WorkInTooManyContextsIsWaitedFor) {
  gpu.work.store(Work::held);
  for (std::uintptr_t i = 1; i <= 8; ++i) {
    Context& context = other_context(i);
    submit(i);
    ThreadOrder::destroys_stream();
    EXPECT_TRUE(ThreadOrder::frees(*driver_, context)) << i;
    EXPECT_EQ(order.of_context, static_cast<int>(i));
  }
  Context& ninth = other_context(9);
  EXPECT_TRUE(ThreadOrder::frees(*driver_, ninth)) << "it has no work";
  EXPECT_EQ(order.of_context, 8);
  submit(9);
  ThreadOrder::destroys_stream();
  EXPECT_FALSE(ThreadOrder::frees(*driver_, ninth)) << "no point covers its work";
  EXPECT_TRUE(ThreadOrder::has_work());
  gpu.work.store(Work::none);
  EXPECT_TRUE(ThreadOrder::frees(*driver_, ninth)) << "the other points are complete";
  EXPECT_EQ(order.of_context, 9);
}

// An event of the legacy stream would be an operation between those of other threads' blocking
// streams.
TEST_F(ThreadOrderTest, WorkInTheLegacyStreamIsMarkedByItsContext) {
  const auto submit_legacy = [&] { ThreadOrder::submits(*driver_, CU_STREAM_LEGACY); };
  gpu.work.store(Work::held);
  submit_legacy();
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 0);
  EXPECT_EQ(order.of_context, 1);
  submit_legacy();
  EXPECT_EQ(order.waits, 0) << "it comes behind its own work";
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 2);
  submit(2);
  EXPECT_EQ(order.waits, 1);
  submit_legacy();
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 1) << "of the other stream";
  EXPECT_EQ(order.of_context, 3);
  submit_legacy();
  EXPECT_EQ(order.waits, 2) << "behind the other stream";
}

TEST_F(ThreadOrderTest, TheLegacyStreamDoesNotWaitForThePointOfItsOwnWork) {
  Context& other = other_context(1);
  gpu.work.store(Work::held);
  ThreadOrder::submits(*driver_, CU_STREAM_LEGACY);
  submit(1);
  EXPECT_TRUE(ThreadOrder::frees(*driver_, other));
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.of_context, 1);
  ThreadOrder::submits(*driver_, CU_STREAM_LEGACY);
  EXPECT_EQ(order.waits, 1) << "behind the other context's stream";
}

TEST_F(ThreadOrderTest, AWaitForTheLegacyStreamIsEnoughForItsOwnPoint) {
  gpu.work.store(Work::held);
  ThreadOrder::submits(*driver_, CU_STREAM_LEGACY);
  EXPECT_TRUE(frees());
  ThreadOrder::has_waited_for(CU_STREAM_LEGACY);
  submit(2);
  EXPECT_EQ(order.waits, 0);
  ThreadOrder::submits_unknown(*driver_);
  EXPECT_TRUE(frees());
  ThreadOrder::has_waited_for(CU_STREAM_LEGACY);
  submit(3);
  EXPECT_EQ(order.waits, 1) << "the point is there for other work too";
}

TEST_F(ThreadOrderTest, WithoutEventsOfContextsTheLegacyStreamHasItsOwn) {
  driver_->cuCtxRecordEvent = nullptr;
  ThreadOrder::submits(*driver_, CU_STREAM_LEGACY);
  EXPECT_TRUE(frees());
  EXPECT_EQ(order.records, 1);
}

}  // namespace
}  // namespace cupool::engine
