// SPDX-License-Identifier: Apache-2.0
// The contexts of streams: where a capture begins and ends, and where work that touches host memory
// is noted.
#include "engine/context/stream_contexts.h"

#include <gtest/gtest.h>

#include "engine_context_registry_fixture.h"

namespace cupool::engine {
namespace {

class StreamContextsTest : public ContextRegistryTest {
 protected:
  StreamContextsTest() {
    capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_result = CUDA_SUCCESS;
    driver_.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
      *status = capture_status;
      return capture_result;
    };
  }
  // The driver's answer.
  static inline CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  static inline CUresult capture_result = CUDA_SUCCESS;
};

TEST_F(StreamContextsTest, AStreamBelongsToTheContextThatTheDriverSays) {
  Context* const first = enter_new();
  Context* const second = enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const auto unknown = reinterpret_cast<CUstream>(0x200);
  streams[stream] = first->handle();
  EXPECT_EQ(streams_.context_of(stream), first);
  EXPECT_EQ(streams_.context_of(unknown), second);
  for (const CUstream its_own : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    streams[its_own] = first->handle();
    EXPECT_EQ(streams_.context_of(its_own), second) << "another one in each context";
  }
  streams[stream] = second->handle();
  EXPECT_EQ(streams_.context_of(stream), second);
  const CUcontext unseen = new_handle();
  streams[stream] = unseen;
  ASSERT_NE(streams_.context_of(stream), nullptr);
  EXPECT_EQ(streams_.context_of(stream)->handle(), unseen) << "seen by its stream first";
  EXPECT_EQ(current, second->handle()) << "as the program had it";
  driver_.cuStreamGetCtx = nullptr;
  streams[stream] = first->handle();
  EXPECT_EQ(streams_.context_of(stream), second) << "an older driver";
}

TEST_F(StreamContextsTest, AStreamOfAHandleThatCameAgainIsTheNewLifes) {
  Context* const first = enter_new();
  Context* const second = enter_new();
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams[stream] = first->handle();
  end(*first);
  EXPECT_EQ(streams_.context_of(stream), first);
  EXPECT_TRUE(first->usable()) << "the program has a stream in it: it is there again";
  EXPECT_EQ(current, second->handle()) << "as the program had it";
}

TEST_F(StreamContextsTest, AStreamCapturesInOneContext) {
  Context* const first = enter_new();
  Context* const second = enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const auto begins = [] { return CUDA_SUCCESS; };
  const auto ended = [] { return false; };
  EXPECT_EQ(streams_.capturing_context(stream), nullptr);
  EXPECT_EQ(streams_.begin_capture(*first, stream, begins), CUDA_SUCCESS);
  EXPECT_EQ(streams_.begin_capture(*first, CU_STREAM_PER_THREAD, begins), CUDA_SUCCESS);
  EXPECT_EQ(streams_.capturing_context(stream), first);
  EXPECT_EQ(streams_.capturing_context(reinterpret_cast<CUstream>(0x200)), nullptr);
  EXPECT_EQ(streams_.capturing_context(CU_STREAM_PER_THREAD), nullptr) << "not in this context";
  set_current(first->handle());
  EXPECT_EQ(streams_.capturing_context(CU_STREAM_PER_THREAD), first);
  for (const CUstream each : {stream, CU_STREAM_PER_THREAD}) {
    first->ordering().captures().end(each, begins, ended);
    EXPECT_EQ(streams_.capturing_context(each), nullptr);
  }
  EXPECT_FALSE(Serving::any_capture());
  EXPECT_EQ(streams_.begin_capture(*second, stream, [] { return CUDA_ERROR_UNKNOWN; }),
            CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(Serving::any_capture()) << "it has not begun";
}

TEST_F(StreamContextsTest, ACaptureEndsWhereItBeganAndWithItsStream) {  // I3
  Context* const first = enter_new();
  enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const auto succeed = [] { return CUDA_SUCCESS; };
  const auto refuse = [] { return CUDA_ERROR_UNKNOWN; };
  streams[stream] = first->handle();
  EXPECT_EQ(streams_.begin_capture(stream, refuse), CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(Serving::any_capture());
  EXPECT_EQ(streams_.begin_capture(stream, succeed), CUDA_SUCCESS);
  EXPECT_TRUE(first->ordering().captures().has(stream)) << "in the stream's context";
  capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(streams_.end_capture(stream, refuse), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(streams_.capturing_context(stream), first) << "the driver says that it goes on";
  capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(streams_.end_capture(stream, succeed), CUDA_SUCCESS);
  EXPECT_EQ(streams_.capturing_context(stream), nullptr);
  EXPECT_EQ(streams_.end_capture(stream, refuse), CUDA_ERROR_UNKNOWN)
      << "the driver's answer where nothing captures";
  streams_.begin_capture(stream, succeed);
  EXPECT_EQ(streams_.destroy(stream, refuse), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(streams_.capturing_context(stream), first) << "the stream is still there";
  EXPECT_EQ(streams_.destroy(stream, succeed), CUDA_SUCCESS);
  EXPECT_FALSE(Serving::any_capture());
}

TEST_F(StreamContextsTest, AStreamsDestructionIsToldToItsContext) {
  Context* const first = enter_new();
  enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams[stream] = first->handle();
  test::gpu.work.store(test::FakeGpu::Work::held);
  HostWork& work = first->host_work();
  const auto wait_for_stream = [&] { work.end_stream_wait(stream, work.begin_wait()); };
  work.submitted(stream);
  wait_for_stream();
  EXPECT_FALSE(work.maybe_pending()) << "the stream was waited for";
  work.submitted(stream);
  const auto destroy = [&] {
    streams.erase(stream);  // the driver does not know whose it was afterwards
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(streams_.destroy(stream, destroy), CUDA_SUCCESS);
  wait_for_stream();
  EXPECT_TRUE(work.maybe_pending()) << "the handle is another stream's";
}

TEST_F(StreamContextsTest, ARefusedDestructionLosesNoWork) {  // contract 2
  Context* const context = enter_new();
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams[stream] = context->handle();
  test::gpu.work.store(test::FakeGpu::Work::held);
  HostWork& work = context->host_work();
  work.submitted(stream);
  EXPECT_EQ(streams_.destroy(stream, [] { return CUDA_ERROR_UNKNOWN; }), CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(work.maybe_pending());
  work.submitted(stream);
  work.end_stream_wait(stream, work.begin_wait());
  EXPECT_TRUE(work.maybe_pending()) << "from before, by an event without a stream";
  work.end_context_wait(work.begin_wait());
  EXPECT_FALSE(work.maybe_pending());
}

// Another thread may get a stream of the same handle before the call that destroys the first one
// returns. Recorded again, its event would say nothing of the first one's work any more.
TEST_F(StreamContextsTest, WorkOfADestroyedStreamIsPendingWhenItsHandleComesAgain) {  // contract 2
  static std::vector<CUevent> recorded;
  static decltype(driver_.cuEventRecord) record;
  recorded.clear();
  record = driver_.cuEventRecord;
  driver_.cuEventRecord = [](CUevent event, CUstream on) {
    recorded.push_back(event);
    return record(event, on);
  };
  Context* const context = enter_new();
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams[stream] = context->handle();
  test::gpu.work.store(test::FakeGpu::Work::held);
  streams_.host_work_submitted(stream);
  const auto destroy = [&] {
    streams_.host_work_submitted(stream);  // the new one
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(streams_.destroy(stream, destroy), CUDA_SUCCESS);
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_NE(recorded[0], recorded[1]);
}

// Its effect on the host is the stream's context's to wait for.
TEST_F(StreamContextsTest, HostWorkIsNotedInTheContextOfItsStream) {  // contract 2
  Context* const first = enter_new();
  Context* const second = enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams[stream] = first->handle();
  capture_result = CUDA_ERROR_UNKNOWN;  // nobody asks while no stream captures
  streams_.host_work_submitted(stream);
  EXPECT_TRUE(first->host_work().maybe_pending());
  EXPECT_FALSE(first->host_work().needs_context());
  EXPECT_FALSE(second->host_work().maybe_pending());
  streams_.host_work_submitted(CU_STREAM_LEGACY);
  EXPECT_TRUE(second->host_work().maybe_pending());
}

// A capture records work in a graph only. An event on its stream would join it.
TEST_F(StreamContextsTest, HostWorkInACaptureIsNotNoted) {  // contract 2 and 9
  Context* const context = enter_new();
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const auto other = reinterpret_cast<CUstream>(0x200);
  const auto succeed = [] { return CUDA_SUCCESS; };
  const HostWork& work = context->host_work();
  streams_.begin_capture(stream, succeed);
  for (const auto status :
       {CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED}) {
    capture_status = status;
    streams_.host_work_submitted(stream);
    EXPECT_FALSE(work.maybe_pending());
    EXPECT_FALSE(work.needs_context());
  }
  capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  streams_.host_work_submitted(other);
  EXPECT_TRUE(work.maybe_pending());
  EXPECT_FALSE(work.needs_context());
  capture_result = CUDA_ERROR_UNKNOWN;
  streams_.host_work_submitted(other);
  EXPECT_TRUE(work.needs_context()) << "the driver does not say: no event, and a wait for all";
  streams_.end_capture(stream, succeed);
  EXPECT_FALSE(Serving::any_capture()) << "nor that the capture goes on";
}

TEST_F(StreamContextsTest, AStreamOfNoServedContextIsLeftToTheDriver) {
  const auto stream = reinterpret_cast<CUstream>(0x100);
  unsigned calls = 0;
  const auto call = [&] {
    ++calls;
    return CUDA_SUCCESS;
  };
  ASSERT_EQ(registry_.current(), nullptr);
  EXPECT_EQ(streams_.begin_capture(stream, call), CUDA_SUCCESS);
  EXPECT_FALSE(Serving::any_capture());
  EXPECT_EQ(streams_.end_capture(stream, call), CUDA_SUCCESS);
  EXPECT_EQ(streams_.destroy(stream, call), CUDA_SUCCESS);
  EXPECT_EQ(calls, 3u);
  streams_.host_work_submitted(stream);
}

}  // namespace
}  // namespace cupool::engine
