// SPDX-License-Identifier: Apache-2.0
// The marks of streams that hooks still touch: a destruction waits for its own stream's alone,
// however many threads have marked others.
#include "engine/reclaim/stream_use.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace cupool::engine {
namespace {

CUstream marked_stream(std::uintptr_t number) {
  return reinterpret_cast<CUstream>(0x40000 + 0x100 * number);
}

std::chrono::milliseconds time_of_wait(CUstream stream) {
  const auto begin = std::chrono::steady_clock::now();
  StreamUse::wait_for_others(stream);
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               begin);
}

using Uses = std::vector<std::unique_ptr<StreamUse>>;

Uses mark(std::uintptr_t count) {
  Uses uses;
  for (std::uintptr_t i = 1; i <= count; ++i) {
    uses.push_back(std::make_unique<StreamUse>(marked_stream(i)));
  }
  return uses;
}

TEST(StreamUseTest, ManyMarksOfOtherStreamsHoldUpNoDestruction) {
  const Uses uses = mark(1000);
  EXPECT_LT(time_of_wait(marked_stream(0)).count(), 300);
}

TEST(StreamUseTest, EachOfManyMarksIsWaitedFor) {
  Uses uses = mark(1000);
  for (const std::uintptr_t number : {1, 64, 65, 999, 1000}) {
    std::atomic<bool> gone{false};
    std::thread destroyer([&] {
      StreamUse::wait_for_others(marked_stream(number));
      gone = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(gone) << number;
    uses[number - 1].reset();
    destroyer.join();
    EXPECT_LT(time_of_wait(marked_stream(number)).count(), 300);
  }
}

TEST(StreamUseTest, TwoMarksOfOneStreamAreTwo) {
  auto first = std::make_unique<StreamUse>(marked_stream(1));
  const StreamUse second(marked_stream(1));
  first.reset();
  EXPECT_GE(time_of_wait(marked_stream(1)).count(), 900) << "until it gives up";
}

TEST(StreamUseTest, AForkedChildHasNone) {
  const Uses uses = mark(200);
  StreamUse::forget();
  for (const std::uintptr_t number : {1, 200}) {
    EXPECT_LT(time_of_wait(marked_stream(number)).count(), 300);
  }
}

TEST(StreamUseTest, DefaultStreamsNeedNoMark) {
  const StreamUse legacy(CU_STREAM_LEGACY);
  const StreamUse per_thread(CU_STREAM_PER_THREAD);
  const StreamUse null(nullptr);
  EXPECT_LT(time_of_wait(CU_STREAM_LEGACY).count(), 300);
  EXPECT_LT(time_of_wait(CU_STREAM_PER_THREAD).count(), 300);
}

// Threads that come and go while others mark and destroy: a mark is never lost.
TEST(StreamUseTest, MarksOfManyThreadsAreSeen) {
  constexpr int kThreads = 100;
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::atomic<bool>> released(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const StreamUse use(marked_stream(static_cast<std::uintptr_t>(i) + 1));
      ++ready;
      while (!go) std::this_thread::yield();
      released[static_cast<std::size_t>(i)] = true;
    });
  }
  while (ready != kThreads) std::this_thread::yield();
  EXPECT_LT(time_of_wait(marked_stream(0)).count(), 300);
  go = true;
  for (int i = 0; i < kThreads; ++i) {
    StreamUse::wait_for_others(marked_stream(static_cast<std::uintptr_t>(i) + 1));
    EXPECT_TRUE(released[static_cast<std::size_t>(i)]) << i;
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cupool::engine
