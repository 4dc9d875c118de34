// SPDX-License-Identifier: Apache-2.0
// Order between streams, and the lateness of the late mode.
// Rules: CUDA Driver API, Stream synchronization behavior.
#include "fixture.h"

#include <thread>

namespace cupool::sim::test {

using Order = Sim;

TEST_F(Order, NothingRunsBeforeAWaitForcesIt) {
  const CUstream s = stream();
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(s, p, 1, 7), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 7u);
}

TEST_F(Order, AWaitRunsItsOwnClosureAndNothingElse) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUdeviceptr p = alloc(8);
  ASSERT_EQ(stamp(a, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p + 4, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(word(p + 4), 2u);
}

TEST_F(Order, AStreamRunsInOrder) {
  const CUstream s = stream();
  const CUdeviceptr p = alloc(4);
  for (uint32_t i = 1; i <= 20; ++i) ASSERT_EQ(stamp(s, p, 1, i), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 20u);
}

TEST_F(Order, AQueryAnswersNotReadyThreeTimesAndThenForces) {
  const CUstream s = stream();
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(s, p, 1, 7), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 7u);
}

TEST_F(Order, AnEventQueryLikewise) {
  const CUstream s = stream();
  const CUevent e = event();
  const CUdeviceptr p = alloc(4);
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS) << "never recorded counts as complete";
  ASSERT_EQ(stamp(s, p, 1, 7), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 7u);
}

TEST_F(Order, AnEventCoversWhatWasSubmittedBeforeItOnly) {
  const CUstream s = stream();
  const CUevent e = event();
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  ASSERT_EQ(stamp(s, p, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(Order, AStreamThatWaitsForAnEventRunsAfterIt) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUevent e = event();
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(a, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 2u);
  EXPECT_EQ(cupoolSimPending(), 0u) << "the work of a came first";
}

// "An event recorded on the legacy stream completes after the work of blocking streams and of
// every thread's per-thread default stream (of a finished thread too)."
TEST_F(Order, TheLegacyStreamWaitsForBlockingAndPerThreadStreams) {
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  const CUstream loose = stream();
  const CUevent e = event();
  const CUdeviceptr p = alloc(16);
  ASSERT_EQ(stamp(blocking, p, 1, 1), CUDA_SUCCESS);
  std::thread([&] {
    cuCtxSetCurrent(context);
    EXPECT_EQ(stamp(CU_STREAM_PER_THREAD, p + 4, 1, 2), CUDA_SUCCESS);
  }).join();
  ASSERT_EQ(stamp(loose, p + 8, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
  EXPECT_EQ(word(p + 4), 2u);
  EXPECT_EQ(word(p + 8), 0u) << "non-blocking streams do not take part";
}

// "A wait on the legacy stream holds back later work of blocking streams, created before or after,
// and of per-thread default streams of any thread."
TEST_F(Order, TheLegacyStreamHoldsBackBlockingStreams) {
  const CUstream source = stream();
  const CUevent e = event();
  const CUdeviceptr p = alloc(4);
  const CUstream before = stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(stamp(source, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, source), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(nullptr, e, 0), CUDA_SUCCESS);
  const CUstream after = stream(CU_STREAM_DEFAULT);
  for (const CUstream s : {before, after, CU_STREAM_PER_THREAD}) {
    ASSERT_EQ(spin(s, 1), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuStreamSynchronize(after), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(Order, TheLegacyStreamDoesNotHoldBackNonBlockingStreams) {
  const CUstream source = stream();
  const CUevent e = event();
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(source, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, source), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(nullptr, e, 0), CUDA_SUCCESS);
  const CUstream loose = stream();
  ASSERT_EQ(spin(loose, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(loose), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
}

// "A legacy-stream event between two blocking streams' kernels serialises them."
TEST_F(Order, ALegacyEventSerialisesBlockingStreams) {
  const CUstream a = stream(CU_STREAM_DEFAULT);
  const CUstream b = stream(CU_STREAM_DEFAULT);
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(a, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event(), nullptr), CUDA_SUCCESS);
  ASSERT_EQ(spin(b, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(Order, WithoutItBlockingStreamsAreIndependent) {
  const CUstream a = stream(CU_STREAM_DEFAULT);
  const CUstream b = stream(CU_STREAM_DEFAULT);
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(a, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event(), a), CUDA_SUCCESS);
  ASSERT_EQ(spin(b, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
}

// docs/measurements/2026-11-28-blocking-streams.
TEST_F(Order, AnEventOfABlockingStreamComesBehindTheLegacyOneAndIsNoWork) {
  const CUstream s = stream(CU_STREAM_DEFAULT);
  const CUdeviceptr p = alloc(4);
  const CUevent untimed = event();
  CUevent timed = nullptr;
  ASSERT_EQ(cuEventCreate(&timed, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(stamp(nullptr, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(untimed, s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(cuEventQuery(untimed), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuEventSynchronize(untimed), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
  ASSERT_EQ(stamp(nullptr, p, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(untimed, s), CUDA_SUCCESS);
  EXPECT_EQ(cupoolSimPending(), 2u);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(untimed), CUDA_SUCCESS) << "what it was behind is complete";
  EXPECT_EQ(cupoolSimPending(), 0u);
  ASSERT_EQ(stamp(nullptr, p, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(untimed, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(s, untimed, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 2u) << "a wait for it is work";
  ASSERT_EQ(stamp(nullptr, p, 1, 5), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(s, untimed, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 2u) << "but not for one that is complete";
  ASSERT_EQ(stamp(nullptr, p, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(timed, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 3u) << "and so is a timed one";
}

// "cuStreamQuery(legacy) says not-ready while a blocking stream is busy, ready while only a
// non-blocking one is."
TEST_F(Order, AskingTheLegacyStreamMeansBlockingStreamsToo) {
  const CUstream loose = stream();
  ASSERT_EQ(spin(loose, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(spin(stream(CU_STREAM_DEFAULT), 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
}

TEST_F(Order, ADestroyedBlockingStreamStillHoldsTheLegacyStream) {
  const CUstream s = stream(CU_STREAM_DEFAULT);
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u) << "destroying a busy stream returns at once";
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(Order, EachThreadHasItsOwnPerThreadStream) {
  unsigned long long mine = 0;
  unsigned long long theirs = 0;
  ASSERT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &mine), CUDA_SUCCESS);
  std::thread([&] {
    cuCtxSetCurrent(context);
    EXPECT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &theirs), CUDA_SUCCESS);
  }).join();
  EXPECT_NE(mine, theirs);
  unsigned long long twin = 0;
  void* function = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuStreamGetId", &function, 13000,
                             CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr),
            CUDA_SUCCESS);
  ASSERT_NE(function, nullptr);
  reinterpret_cast<decltype(&cuStreamGetId)>(function)(nullptr, &twin);
  EXPECT_EQ(twin, mine) << "null means the per-thread stream in the twins";
}

TEST_F(Order, HandlesOfTheDeadAreRefused) {
  const CUstream s = stream();
  const CUevent e = event();
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace cupool::sim::test
