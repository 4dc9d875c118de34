// SPDX-License-Identifier: Apache-2.0
// Everyone waits for everyone: found and named when host functions are part of the circle, and
// never claimed while somebody could still make progress. Rule: tests/sim/README.md.
#include "fixture.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace cupool::sim::test {

namespace {

constexpr const char* kLimit = "200";
constexpr auto kMuchLonger = std::chrono::milliseconds(800);

#if defined(__SANITIZE_THREAD__)
constexpr bool kSanitizerThreads = true;  // one that sleeps with a timeout: it might do anything
#else
constexpr bool kSanitizerThreads = false;
#endif

/// A host function that runs this.
CUresult call(CUstream stream, std::function<void()>& body) {
  return cuLaunchHostFunc(
      stream, [](void* data) { (*static_cast<std::function<void()>*>(data))(); }, &body);
}

}  // namespace

class Deadlocked : public Sim {
 protected:
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    Sim::SetUp();
    ASSERT_EQ(cupoolSimSet("deadlock_ms", kLimit), 0);
    s = stream();
  }
  void TearDown() override {
    cupoolSimSet("deadlock_ms", "10000");
    Sim::TearDown();
  }

  /// The caller holds the lock that its own host function wants.
  void hold_and(const std::function<void()>& wait) {
    std::function<void()> body = [this] { std::lock_guard<std::mutex> inside(lock); };
    std::lock_guard<std::mutex> outside(lock);
    call(s, body);
    wait();
  }

  CUstream s = nullptr;
  std::mutex lock;
};

using DeadlockedDeathTest = Deadlocked;

TEST_F(Deadlocked, AQueryWaitsForNoHostFunction) {
  ASSERT_EQ(cupoolSimSet("polls", "0"), 0);
  std::function<void()> body = [this] { std::lock_guard<std::mutex> inside(lock); };
  const CUevent e = event();
  lock.lock();
  ASSERT_EQ(call(s, body), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  }
  lock.unlock();
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  cupoolSimSet("polls", "3");
}

TEST_F(DeadlockedDeathTest, AStreamIsWaitedForWithALockOfItsHostFunction) {
  EXPECT_DEATH(hold_and([&] { cuStreamSynchronize(s); }),
               "everyone waits for everyone: host function 0x[^\n]* cannot return\n"
               "  thread [0-9]+ \\(the host function\\) wants the lock 0x[^\n]*\n"
               "  thread [0-9]+ in cuStreamSynchronize waits for stream 0x");
}

TEST_F(DeadlockedDeathTest, AnEventIsWaitedForWithALockOfItsHostFunction) {
  const CUevent e = event();
  EXPECT_DEATH(hold_and([&] {
                 cuEventRecord(e, s);
                 cuEventSynchronize(e);
               }),
               "in cuEventSynchronize waits for event 0x");
}

TEST_F(DeadlockedDeathTest, TheContextIsWaitedForWithALockOfAHostFunction) {
  EXPECT_DEATH(hold_and([&] { cuCtxSynchronize(); }), "in cuCtxSynchronize waits for its context");
}

// An allocator that frees with a lock held which host functions want (invariant I4).
TEST_F(DeadlockedDeathTest, LegacyFreeWaitsWithALockOfAHostFunction) {
  const CUdeviceptr p = alloc(64);
  EXPECT_DEATH(hold_and([&] { cuMemFree(p); }), "in cuMemFree_v2 waits for its context");
}

TEST_F(DeadlockedDeathTest, InEveryMode) {
  for (const char* mode : {"early", "timed"}) {
    EXPECT_DEATH(
        {
          cupoolSimSet("mode", mode);
          hold_and([&] { cuStreamSynchronize(s); });
        },
        "everyone waits for everyone")
        << mode;
  }
}

TEST_F(DeadlockedDeathTest, AThirdThreadStandsBetween) {
  EXPECT_DEATH(
      {
        std::mutex between;
        std::atomic<bool> held{false};
        std::function<void()> body = [&] { std::lock_guard<std::mutex> inside(between); };
        std::lock_guard<std::mutex> outside(lock);
        std::thread third([&] {
          std::lock_guard<std::mutex> mine(between);
          held = true;
          std::lock_guard<std::mutex> wanted(lock);
        });
        while (!held) std::this_thread::yield();
        call(s, body);
        cuStreamSynchronize(s);
      },
      "wants the lock 0x[^\n]*\n  thread [0-9]+ wants the lock 0x");
}

// cuda.h, cuLaunchHostFunc: host functions of independent streams may be serialised.
TEST_F(DeadlockedDeathTest, TheHostFunctionOfAnotherStreamStandsBefore) {
  const CUstream other = stream();
  EXPECT_DEATH(
      {
        std::atomic<bool> began{false};
        std::function<void()> blocked = [&] {
          began = true;
          std::lock_guard<std::mutex> inside(lock);
        };
        std::function<void()> harmless = [] {};
        std::lock_guard<std::mutex> outside(lock);
        cupoolSimSet("mode", "early");
        call(other, blocked);
        while (!began) std::this_thread::yield();
        call(s, harmless);
        cuStreamSynchronize(s);
      },
      "everyone waits for everyone");
}

// No lock tells who ought to act, but nobody is left who could.
TEST_F(DeadlockedDeathTest, AHostFunctionWaitsForASignalThatNobodyCanGive) {
  if (kSanitizerThreads) GTEST_SKIP() << "the sanitizer's own thread may not be told apart";
  EXPECT_DEATH(
      {
        std::condition_variable signal;
        bool given = false;
        std::function<void()> body = [&] {
          std::unique_lock<std::mutex> inside(lock);
          signal.wait(inside, [&] { return given; });
        };
        call(s, body);
        std::thread joined([&] {
          cuCtxSetCurrent(context);
          cuStreamSynchronize(s);
        });
        joined.join();
        given = true;
      },
      "every other thread of the process sleep.*\n.*in cuStreamSynchronize waits for stream");
}

// Nobody is in the driver. Each thread has one lock and wants that of the other.
TEST_F(DeadlockedDeathTest, TwoThreadsWantEachOthersLocks) {
  EXPECT_DEATH(
      {
        cupoolSimSet("deadlock_watch", "1");
        std::mutex other;
        std::atomic<int> held{0};
        const auto take = [&](std::mutex& first, std::mutex& second, const char* call) {
          cupoolSimProgramCall(call);
          std::lock_guard<std::mutex> mine(first);
          ++held;
          while (held != 2) std::this_thread::yield();
          std::lock_guard<std::mutex> wanted(second);
        };
        std::thread aside([&] { take(other, lock, "cuMemFree"); });
        take(lock, other, "cuCtxDestroy");
      },
      "everyone waits for everyone: no thread of a circle can go on\n"
      "  thread [0-9]+ \\(its program called cuCtxDestroy\\) wants the lock 0x[^\n]* of thread .*\n"
      "  thread [0-9]+ \\(its program called cuMemFree\\) wants the lock 0x");
}

TEST_F(DeadlockedDeathTest, NobodyIsLeftToGiveASignal) {
  if (kSanitizerThreads) GTEST_SKIP() << "the sanitizer's own thread may not be told apart";
  EXPECT_DEATH(
      {
        cupoolSimSet("deadlock_watch", "1");
        std::condition_variable signal;
        std::unique_lock<std::mutex> inside(lock);
        cupoolSimProgramCall("cuMemAlloc");
        signal.wait(inside);
      },
      "every thread of the process sleeps until .*\n"
      "  thread [0-9]+ \\(its program called cuMemAlloc\\) sleeps at 0x");
}

// From here on: long waits that end.
TEST_F(Deadlocked, LocksInARowAreNoCircle) {
  ASSERT_EQ(cupoolSimSet("deadlock_watch", "1"), 0);
  std::mutex other;
  std::atomic<int> held{0};
  std::thread last([&] {
    std::lock_guard<std::mutex> mine(other);
    ++held;
    std::this_thread::sleep_for(kMuchLonger);
  });
  std::thread middle([&] {
    std::lock_guard<std::mutex> mine(lock);
    ++held;
    std::lock_guard<std::mutex> wanted(other);
  });
  while (held != 2) std::this_thread::yield();
  { const std::lock_guard<std::mutex> wanted(lock); }
  middle.join();
  last.join();
}

TEST_F(Deadlocked, ASlowHostFunctionIsNoDeadlock) {
  std::function<void()> body = [] { std::this_thread::sleep_for(kMuchLonger); };
  ASSERT_EQ(call(s, body), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

TEST_F(Deadlocked, ALockOfAThreadThatIsNotInTheDriverIsNoDeadlock) {
  std::atomic<bool> held{false};
  std::thread holder([&] {
    std::lock_guard<std::mutex> mine(lock);
    held = true;
    std::this_thread::sleep_for(kMuchLonger);
  });
  while (!held) std::this_thread::yield();
  std::function<void()> body = [&] { std::lock_guard<std::mutex> inside(lock); };
  ASSERT_EQ(call(s, body), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  holder.join();
}

TEST_F(Deadlocked, ASignalThatAThreadWillGiveIsNoDeadlock) {
  std::condition_variable signal;
  bool given = false;
  std::function<void()> body = [&] {
    std::unique_lock<std::mutex> inside(lock);
    signal.wait(inside, [&] { return given; });
  };
  ASSERT_EQ(call(s, body), CUDA_SUCCESS);
  std::thread giver([&] {
    std::this_thread::sleep_for(kMuchLonger);
    std::lock_guard<std::mutex> mine(lock);
    given = true;
    signal.notify_all();
  });
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  giver.join();
}

TEST_F(Deadlocked, AThreadThatOnlyPollsIsNoDeadlock) {
  std::condition_variable signal;
  bool given = false;
  std::function<void()> body = [&] {
    std::unique_lock<std::mutex> inside(lock);
    signal.wait(inside, [&] { return given; });
  };
  ASSERT_EQ(call(s, body), CUDA_SUCCESS);
  std::thread poller([&] {
    cuCtxSetCurrent(context);
    const CUevent e = event();
    const auto end = std::chrono::steady_clock::now() + kMuchLonger;
    while (std::chrono::steady_clock::now() < end) cuEventQuery(e);
    std::lock_guard<std::mutex> mine(lock);
    given = true;
    signal.notify_all();
  });
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  poller.join();
}

TEST_F(Deadlocked, ALockThatIsReleasedBeforeTheWaitIsNoDeadlock) {
  std::function<void()> body = [&] { std::lock_guard<std::mutex> inside(lock); };
  {
    std::lock_guard<std::mutex> outside(lock);
    ASSERT_EQ(call(s, body), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

TEST_F(Deadlocked, TheLimitCanBeChosenButNotMisspelt) {
  EXPECT_EQ(cupoolSimSet("deadlock_ms", "0"), 0);
  EXPECT_EQ(cupoolSimSet("deadlock_ms", "soon"), -1);
}

}  // namespace cupool::sim::test
