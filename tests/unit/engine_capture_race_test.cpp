// SPDX-License-Identifier: Apache-2.0
// The rule I3 between contexts: a stream of another context may join a capture as soon as it has
// begun, so no fence may be on its way in any context by then.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "engine/context/stream_contexts.h"
#include "engine/context/submission.h"
#include "engine_fake_driver.h"

namespace cupool::engine {
namespace {

class CaptureRaceTest : public testing::Test {
 protected:
  static inline const CUcontext kFirst = reinterpret_cast<CUcontext>(0x11000);
  static inline const CUcontext kSecond = reinterpret_cast<CUcontext>(0x22000);
  static inline thread_local CUcontext current = nullptr;
  static inline std::atomic<bool> recording{false};
  static inline std::atomic<bool> begun{false};
  static inline std::atomic<bool> recorded_into_capture{false};
  static inline std::atomic<int> records{0};

  static CUresult get_current(CUcontext* context) {
    *context = current;
    return CUDA_SUCCESS;
  }
  static CUresult push_current(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
  }
  static CUresult pop_current(CUcontext* context) {
    *context = current;
    return CUDA_SUCCESS;
  }
  // A fence of the second context that takes its time in the driver.
  static CUresult slow_record(CUcontext, CUevent) {
    ++records;
    recording = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (!begun && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (begun) recorded_into_capture = true;
    return CUDA_SUCCESS;
  }

  CaptureRaceTest() {
    driver_.cuCtxGetCurrent = get_current;
    driver_.cuCtxPushCurrent_v2 = push_current;
    driver_.cuCtxPopCurrent_v2 = pop_current;
    driver_.cuCtxRecordEvent = slow_record;
    // Reachable for ever, so that a leak detector takes them for what they are.
    static auto* const kept = new std::vector<const void*>;
    for (const void* object :
         {static_cast<const void*>(&driver_), static_cast<const void*>(&settings_),
          static_cast<const void*>(&registry_)}) {
      kept->push_back(object);
    }
  }
  Context* context(CUcontext handle) {
    current = handle;
    ContextRegistry::current_may_change();
    return registry_.current();
  }
  static void retire(Context& context) {
    Block* const block = new_block();
    block->capacity = 512;
    block->state.store(BlockState::freed);
    context.ordering().epochs().retire(block);
  }

  // Contexts are never destroyed, and refer to these.
  cuda::Driver& driver_ = *new cuda::Driver(test::fake_driver());
  config::Settings& settings_ = *new config::Settings(config::parse(nullptr, nullptr, nullptr));
  ContextRegistry& registry_ = *new ContextRegistry(driver_, settings_);
  StreamContexts streams_{driver_, registry_};
};

TEST_F(CaptureRaceTest, NoFenceIsOnItsWayInAnyContextWhenACaptureBegins) {
  Context* const second = context(kSecond);
  Context* const first = context(kFirst);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  retire(*second);
  std::thread records_a_fence([&] {
    current = kSecond;
    EXPECT_EQ(second->ordering().close(), CUDA_SUCCESS);
  });
  while (!recording) std::this_thread::yield();
  const CUstream stream = reinterpret_cast<CUstream>(0x20);
  const auto begin = [] {
    begun = true;
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(streams_.begin_capture(*first, stream, begin), CUDA_SUCCESS);
  records_a_fence.join();
  EXPECT_FALSE(recorded_into_capture);

  // And none is recorded until the capture has ended.
  retire(*second);
  EXPECT_EQ(second->ordering().close(), CUDA_SUCCESS);
  EXPECT_EQ(records, 1);
  EXPECT_EQ(streams_.capturing_context(stream), first);
  first->ordering().captures().end(
      stream, [] { return CUDA_SUCCESS; }, [] { return false; });
  EXPECT_FALSE(Serving::any_capture());
  EXPECT_EQ(second->ordering().close(), CUDA_SUCCESS);
  EXPECT_EQ(records, 2);
}

// Nor is a mark of the lane, though another thread is leaving it.
TEST_F(CaptureRaceTest, NoMarkIsOnItsWayWhenACaptureBeginsBesideALeaving) {
  Lane::reset();
  Context* const first = context(kFirst);
  driver_.cuStreamGetCtx = [](CUstream, CUcontext* of) {
    *of = kFirst;
    return CUDA_SUCCESS;
  };
  driver_.cuEventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(0x30);
    return CUDA_SUCCESS;
  };
  driver_.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
  driver_.cuEventQuery = [](CUevent) { return CUDA_SUCCESS; };
  const CUstream stream = reinterpret_cast<CUstream>(0x2000);
  for (int i = 0; i < 8; ++i) const Submission submission(driver_, stream, "cuLaunchKernel");
  ASSERT_TRUE(Lane::is_open());
  driver_.cuEventRecord = [](CUevent, CUstream) { return slow_record(nullptr, nullptr); };
  recording = begun = recorded_into_capture = false;
  std::thread frees([&] {
    current = kFirst;
    Lane::covers_free(driver_);
  });
  while (!recording) std::this_thread::yield();
  std::thread leaves([] { Lane::leave(Lane::End::unknown_work); });
  while (Lane::is_open()) std::this_thread::yield();
  EXPECT_EQ(streams_.begin_capture(*first, stream,
                                   [] {
                                     begun = true;
                                     return CUDA_ERROR_UNKNOWN;
                                   }),
            CUDA_ERROR_UNKNOWN);
  frees.join();
  leaves.join();
  EXPECT_FALSE(recorded_into_capture);
  Lane::reset();
}

// Nor an event behind a copy, whose thread has found the stream not capturing.
TEST_F(CaptureRaceTest, NoNoteIsOnItsWayWhenACaptureBegins) {
  Context* const first = context(kFirst);
  driver_.cuStreamGetCtx = [](CUstream, CUcontext* of) {
    *of = kFirst;
    return CUDA_SUCCESS;
  };
  driver_.cuEventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(0x30);
    return CUDA_SUCCESS;
  };
  driver_.cuEventRecord = [](CUevent, CUstream) { return slow_record(nullptr, nullptr); };
  recording = begun = recorded_into_capture = false;
  const CUstream stream = reinterpret_cast<CUstream>(0x2000);
  std::thread copies([&] {
    current = kFirst;
    streams_.host_work_submitted(stream);
  });
  while (!recording) std::this_thread::yield();
  EXPECT_EQ(streams_.begin_capture(*first, stream,
                                   [] {
                                     begun = true;
                                     return CUDA_ERROR_UNKNOWN;
                                   }),
            CUDA_ERROR_UNKNOWN);
  copies.join();
  EXPECT_FALSE(recorded_into_capture);
}

// Nor one behind work outside the lane.
TEST_F(CaptureRaceTest, NoEventBehindOtherWorkIsOnItsWayWhenACaptureBegins) {
  Lane::reset();
  Context* const first = context(kFirst);
  driver_.cuStreamGetCtx = [](CUstream, CUcontext* of) {
    *of = kFirst;
    return CUDA_SUCCESS;
  };
  driver_.cuEventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(0x30);
    return CUDA_SUCCESS;
  };
  driver_.cuEventRecord = [](CUevent, CUstream) { return slow_record(nullptr, nullptr); };
  recording = begun = recorded_into_capture = false;
  std::thread works([&] {
    current = kFirst;
    { const Submission submission(driver_, reinterpret_cast<CUstream>(0x3000), "a call"); }
    ThreadOrder::thread_ends(driver_);
  });
  while (!recording) std::this_thread::yield();
  EXPECT_EQ(streams_.begin_capture(*first, reinterpret_cast<CUstream>(0x2000),
                                   [] {
                                     begun = true;
                                     return CUDA_ERROR_UNKNOWN;
                                   }),
            CUDA_ERROR_UNKNOWN);
  works.join();
  EXPECT_FALSE(recorded_into_capture);
  Lane::reset();
}

// A copy from before the capture that is noted within would not be noted at all.
TEST_F(CaptureRaceTest, ACaptureBeginsBehindTheNoteOfACallFromBefore) {
  Context* const first = context(kFirst);
  const CUstream stream = reinterpret_cast<CUstream>(0x2000);
  std::atomic<bool> under_way{false};
  static std::atomic<bool> noted{false};
  noted = false;
  std::thread copies([&] {
    const StreamUse in_use(stream);
    under_way = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    noted = true;
  });
  while (!under_way) std::this_thread::yield();
  EXPECT_EQ(streams_.begin_capture(*first, stream,
                                   [] { return noted ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS; }),
            CUDA_ERROR_UNKNOWN);
  copies.join();
}

}  // namespace
}  // namespace cupool::engine
