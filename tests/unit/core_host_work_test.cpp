// The host's side of free (contract 2): which work a free waits for, and which not any more.
#include "core/host_work.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

namespace cupool::core {
namespace {

struct FakeStreams {
  std::map<CUevent, bool> complete;
  std::map<CUevent, CUstream> recorded_on;
  std::vector<CUevent> waited;
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
  return CUDA_SUCCESS;
}
CUresult fake_record(CUevent event, CUstream stream) {
  if (streams.record_result != CUDA_SUCCESS) return streams.record_result;
  streams.complete[event] = false;
  streams.recorded_on[event] = stream;
  return CUDA_SUCCESS;
}
CUresult host_work_query(CUevent event) {
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
    driver_.cuEventRecord = fake_record;
    driver_.cuEventQuery = host_work_query;
    driver_.cuEventSynchronize = host_work_wait;
  }
  bool waits(HostWork& work) {
    bool waited = false;
    EXPECT_EQ(work.wait(&waited), CUDA_SUCCESS);
    return waited;
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
  work.stream_destroyed(kFirst);
  work.submitted(kFirst);  // another stream with the same handle
  EXPECT_TRUE(waits(work));
  EXPECT_EQ(streams.waited.size(), 2u);
}

TEST_F(HostWorkTest, EventsAreUsedAgain) {
  HostWork work(driver_, kWorkContext);
  for (int i = 0; i < 100; ++i) {
    work.submitted(kFirst);
    EXPECT_TRUE(waits(work));
    work.stream_destroyed(kFirst);
  }
  EXPECT_EQ(streams.next_event, 2u) << "streams that come and go do not make events without end";
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
  work.stream_destroyed(kFirst);
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

TEST(HostReachableTest, MemoryIsCountedUntilItIsGone) {
  HostReachable reachable;
  EXPECT_FALSE(reachable.any(HostReachable::Kind::managed));
  reachable.add(HostReachable::Kind::managed, 0x1000);
  reachable.add(HostReachable::Kind::managed, 0x1000);
  EXPECT_TRUE(reachable.any(HostReachable::Kind::managed));
  EXPECT_FALSE(reachable.any(HostReachable::Kind::zero_copy));
  reachable.remove(HostReachable::Kind::managed, 0x2000);
  EXPECT_TRUE(reachable.any(HostReachable::Kind::managed));
  reachable.remove(HostReachable::Kind::managed, 0x1000);
  EXPECT_FALSE(reachable.any(HostReachable::Kind::managed));
}

}  // namespace
}  // namespace cupool::core
