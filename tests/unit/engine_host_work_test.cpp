// SPDX-License-Identifier: Apache-2.0
// The host's side of free (contract 2): which work a free waits for, and which not any more.
#include "engine/reclaim/host_work.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <vector>

namespace cupool::engine {
namespace {

struct FakeStreams {
  std::map<CUevent, bool> complete;
  std::map<CUevent, CUstream> recorded_on;
  std::vector<CUevent> waited;
  std::set<CUevent> alive;
  std::size_t queries = 0;
  std::uintptr_t next_event = 1;
  CUresult record_result = CUDA_SUCCESS;
} streams;

CUcontext const kWorkContext = reinterpret_cast<CUcontext>(0x1000);
CUstream const kFirst = reinterpret_cast<CUstream>(0x10000);
CUstream const kSecond = reinterpret_cast<CUstream>(0x20000);

CUresult host_work_get_current(CUcontext* context) {
  *context = kWorkContext;
  return CUDA_SUCCESS;
}
CUresult fake_create(CUevent* event, unsigned int) {
  *event = reinterpret_cast<CUevent>(streams.next_event++);
  streams.alive.insert(*event);
  return CUDA_SUCCESS;
}
CUresult fake_destroy(CUevent event) {
  return streams.alive.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult fake_record(CUevent event, CUstream stream) {
  if (streams.record_result != CUDA_SUCCESS) return streams.record_result;
  streams.complete[event] = false;
  streams.recorded_on[event] = stream;
  return CUDA_SUCCESS;
}
CUresult host_work_query(CUevent event) {
  ++streams.queries;
  return streams.complete.at(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult host_work_wait(CUevent event) {
  streams.waited.push_back(event);
  streams.complete[event] = true;
  return CUDA_SUCCESS;
}

class HostWorkTest : public testing::Test {
 protected:
  HostWorkTest() {
    streams = FakeStreams{};
    driver_.cuCtxGetCurrent = host_work_get_current;
    driver_.cuEventCreate = fake_create;
    driver_.cuEventDestroy_v2 = fake_destroy;
    driver_.cuEventRecord = fake_record;
    driver_.cuEventQuery = host_work_query;
    driver_.cuEventSynchronize = host_work_wait;
  }
  bool waits(HostWork& work) {
    const WaitResult result = work.wait();
    EXPECT_TRUE(result.complete());
    return result.waited;
  }
  cuda::Driver driver_;
};

TEST_F(HostWorkTest, NothingSubmittedNothingToWaitFor) {
  HostWork work(driver_, kWorkContext);
  EXPECT_FALSE(work.maybe_pending());
  EXPECT_FALSE(waits(work));
}

TEST_F(HostWorkTest, APendingCopyIsWaitedForOnce) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  EXPECT_TRUE(work.maybe_pending());
  EXPECT_TRUE(waits(work));
  EXPECT_FALSE(work.maybe_pending());
  EXPECT_FALSE(waits(work));
}

TEST_F(HostWorkTest, ACopyThatIsDoneIsNotWaitedFor) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  streams.complete.begin()->second = true;
  EXPECT_FALSE(waits(work));
  EXPECT_FALSE(work.maybe_pending());
}

TEST_F(HostWorkTest, EveryStreamIsCovered) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  work.submitted(kSecond);
  work.submitted(CU_STREAM_PER_THREAD);
  EXPECT_TRUE(waits(work));
  EXPECT_EQ(streams.waited.size(), 3u);
}

TEST_F(HostWorkTest, ALaterCopyOnAStreamCoversTheEarlierOne) {
  HostWork work(driver_, kWorkContext);
  for (int i = 0; i < 100; ++i) work.submitted(kFirst);
  EXPECT_EQ(streams.recorded_on.size(), 1u) << "one event a stream, not one a copy";
  EXPECT_TRUE(waits(work));
}

TEST_F(HostWorkTest, WorkOfADestroyedStreamStaysPendingWhenItsHandleComesBack) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  work.destroys(kFirst);
  work.submitted(kFirst);  // another stream with the same handle
  EXPECT_TRUE(waits(work));
  EXPECT_EQ(streams.waited.size(), 2u);
}

TEST_F(HostWorkTest, EventsAreUsedAgain) {
  HostWork work(driver_, kWorkContext);
  for (int i = 0; i < 100; ++i) {
    work.submitted(kFirst);
    EXPECT_TRUE(waits(work));
    work.destroys(kFirst);
  }
  EXPECT_EQ(streams.next_event, 2u) << "streams that come and go do not make events without end";
}

CUstream stream_number(std::uintptr_t number) {
  return reinterpret_cast<CUstream>(0x100000 + 0x100 * number);
}

void finish_all() {
  for (auto& [event, complete] : streams.complete) complete = true;
}

// A server that makes a stream for each request and never frees.
TEST_F(HostWorkTest, StreamsThatComeAndGoWithoutAFreeLeaveNoEvents) {
  HostWork work(driver_, kWorkContext);
  for (std::uintptr_t request = 0; request < 20'000; ++request) {
    work.submitted(stream_number(request));
    finish_all();
    work.destroys(stream_number(request));
  }
  EXPECT_LE(streams.next_event, 5u);
  EXPECT_LE(streams.queries, 60'000u) << "a copy looks at a few others, not at all";
}

TEST_F(HostWorkTest, StreamsThatStayLeaveFewEvents) {
  HostWork work(driver_, kWorkContext);
  for (std::uintptr_t number = 0; number < 20'000; ++number) {
    work.submitted(stream_number(number));
    finish_all();
  }
  EXPECT_LE(streams.alive.size(), 100u);
  EXPECT_LE(streams.queries, 60'000u);
  EXPECT_FALSE(waits(work));
  work.submitted(stream_number(7));  // forgotten meanwhile, or not
  EXPECT_TRUE(waits(work));
}

TEST_F(HostWorkTest, ThreadsThatComeAndGoLeaveFewEvents) {
  HostWork work(driver_, kWorkContext);
  for (int i = 0; i < 300; ++i) {
    std::thread([&] { work.submitted(CU_STREAM_PER_THREAD); }).join();
    finish_all();
  }
  EXPECT_LE(streams.alive.size(), 100u);
}

TEST_F(HostWorkTest, EventsOfManyPendingCopiesGoOnceTheyAreDone) {
  HostWork work(driver_, kWorkContext);
  for (std::uintptr_t number = 0; number < 3'000; ++number) work.submitted(stream_number(number));
  EXPECT_EQ(streams.alive.size(), 3'000u) << "all are pending";
  EXPECT_LE(streams.queries, 9'000u);
  finish_all();
  for (int i = 0; i < 30'000; ++i) {
    work.submitted(kFirst);
    finish_all();
  }
  EXPECT_LE(streams.alive.size(), 130u) << "by copies on one stream alone";
  EXPECT_FALSE(waits(work));
}

TEST_F(HostWorkTest, WhatIsPendingStaysSoWhileOthersAreLookedAt) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  const CUevent first = streams.recorded_on.begin()->first;
  for (std::uintptr_t number = 0; number < 1'000; ++number) {
    work.submitted(stream_number(number));
    finish_all();
    streams.complete[first] = false;
    work.destroys(stream_number(number));
  }
  EXPECT_EQ(streams.recorded_on.at(first), kFirst) << "its event is not used for another";
  EXPECT_TRUE(waits(work));
  EXPECT_EQ(streams.waited, std::vector<CUevent>{first});
}

std::promise<void>* record_begins = nullptr;
std::shared_future<void> record_may_end;
CUresult slow_record(CUevent event, CUstream stream) {
  if (stream == kSecond) {
    record_begins->set_value();
    record_may_end.wait();
  }
  return fake_record(event, stream);
}

// Another thread's work on kSecond, in the midst of its record until end().
class SlowSubmission {
 public:
  explicit SlowSubmission(HostWork& work) {
    record_begins = &begins_;
    record_may_end = may_end_.get_future().share();
    thread_ = std::thread([&work] { work.submitted(kSecond); });
    begins_.get_future().wait();
  }
  void end() {
    may_end_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> begins_;
  std::promise<void> may_end_;
  std::thread thread_;
};

// I4: where the driver's queue is full, a record waits for the GPU.
TEST_F(HostWorkTest, ARecordThatTakesLongHoldsUpNoOtherThread) {
  driver_.cuEventRecord = slow_record;
  HostWork work(driver_, kWorkContext);
  SlowSubmission slow(work);
  std::future<bool> other = std::async(std::launch::async, [&] {
    work.submitted(kFirst);
    work.destroys(kFirst);
    return waits(work);
  });
  const bool held_up = other.wait_for(std::chrono::seconds(5)) != std::future_status::ready;
  slow.end();
  EXPECT_FALSE(held_up);
  EXPECT_TRUE(other.get());
  EXPECT_TRUE(waits(work)) << "for the slow one";
}

// What is submitted meanwhile may wait for what the thread does after its free.
TEST_F(HostWorkTest, AWaitGoesOnForNothingThatIsSubmittedDuringIt) {
  static HostWork* shared;
  HostWork work(driver_, kWorkContext);
  shared = &work;
  driver_.cuEventSynchronize = [](CUevent event) {
    if (streams.waited.empty()) shared->submitted(kSecond);
    return host_work_wait(event);
  };
  work.submitted(kFirst);
  work.submitted(kSecond);
  EXPECT_TRUE(waits(work));
  ASSERT_EQ(streams.waited.size(), 2u);
  const auto later = reinterpret_cast<CUevent>(std::uintptr_t{3});
  EXPECT_EQ(streams.recorded_on.at(later), kSecond);
  EXPECT_NE(streams.waited[1], later);
  EXPECT_TRUE(work.maybe_pending());
  EXPECT_TRUE(waits(work));
  EXPECT_EQ(streams.waited.back(), later);
  EXPECT_FALSE(work.maybe_pending());
}

TEST_F(HostWorkTest, AContextThatGoesDuringARecordTakesTheEventAlong) {
  driver_.cuEventRecord = slow_record;
  HostWork work(driver_, kWorkContext);
  SlowSubmission slow(work);
  work.abandon();
  slow.end();
  EXPECT_FALSE(work.maybe_pending());
  work.submitted(kFirst);
  EXPECT_EQ(streams.next_event, 3u) << "an event of the next incarnation";
  EXPECT_TRUE(waits(work));
}

TEST_F(HostWorkTest, AStreamThatIsDestroyedDuringARecordLeavesItsWorkPending) {
  driver_.cuEventRecord = slow_record;
  HostWork work(driver_, kWorkContext);
  SlowSubmission slow(work);
  work.destroys(kSecond);
  slow.end();
  EXPECT_TRUE(work.maybe_pending());
  EXPECT_TRUE(waits(work));
}

TEST_F(HostWorkTest, AWaitThatBeganWithNothingPendingCoversNothing) {
  HostWork work(driver_, kWorkContext);
  const HostWork::Mark before = work.begin_wait();
  work.submitted(kFirst);
  work.end_stream_wait(kFirst, before);
  work.end_context_wait(before);
  EXPECT_TRUE(waits(work));
}

TEST_F(HostWorkTest, WorkWithoutAnEventIsCoveredByTheContextAlone) {
  HostWork work(driver_, kWorkContext);
  streams.record_result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  work.submitted(kFirst);
  EXPECT_TRUE(work.needs_context());
  const HostWork::Mark before = work.begin_wait();
  work.submitted_unseen();  // while the wait is on
  work.end_context_wait(before);
  EXPECT_TRUE(work.needs_context()) << "what came during the wait is not covered";
  work.end_context_wait(work.begin_wait());
  EXPECT_FALSE(work.needs_context());
}

TEST_F(HostWorkTest, TheProgramsWaitForAStreamCoversItsCopiesAlone) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  work.submitted(kSecond);
  work.end_stream_wait(kFirst, work.begin_wait());
  EXPECT_TRUE(waits(work));
  EXPECT_EQ(streams.waited.size(), 1u) << "for the other stream";
  work.submitted(kFirst);
  work.end_stream_wait(kFirst, work.begin_wait());
  EXPECT_FALSE(work.maybe_pending());
}

TEST_F(HostWorkTest, WhatIsSubmittedDuringAWaitIsNotCovered) {
  HostWork work(driver_, kWorkContext);
  for (const bool whole_context : {false, true}) {
    work.submitted(kFirst);
    const HostWork::Mark before = work.begin_wait();
    work.submitted(kFirst);
    whole_context ? work.end_context_wait(before) : work.end_stream_wait(kFirst, before);
    EXPECT_TRUE(waits(work));
  }
}

TEST_F(HostWorkTest, AnotherStreamOfTheSameHandleIsNotCovered) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  const HostWork::Mark before = work.begin_wait();
  work.destroys(kFirst);
  work.submitted(kFirst);
  work.end_stream_wait(kFirst, before);
  EXPECT_TRUE(waits(work));
}

TEST_F(HostWorkTest, AnotherThreadsDefaultStreamIsNotCovered) {
  HostWork work(driver_, kWorkContext);
  std::thread([&] { work.submitted(CU_STREAM_PER_THREAD); }).join();
  work.end_stream_wait(CU_STREAM_PER_THREAD, work.begin_wait());
  EXPECT_TRUE(work.maybe_pending());
  work.end_context_wait(work.begin_wait());
  EXPECT_FALSE(work.maybe_pending());
}

TEST_F(HostWorkTest, AContextThatIsGoneHasNothingPending) {
  HostWork work(driver_, kWorkContext);
  work.submitted(kFirst);
  work.submitted_unseen();
  work.abandon();
  EXPECT_FALSE(work.maybe_pending());
  EXPECT_FALSE(work.needs_context());
}

}  // namespace
}  // namespace cupool::engine
