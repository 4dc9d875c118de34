// SPDX-License-Identifier: Apache-2.0
// Calls on their way while their context ends and the driver gives its handle to the next one: what
// is of the old life stays out of the new one (contract 10, I8).
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/reclaim/pending_work.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

// Whether the next life has begun by the time a thread that waits for the end goes on is up to the
// scheduler, so each test has several rounds.
class TwoLivesTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kBlockBytes = 4096;
  static constexpr int kRounds = 20;
  static inline std::function<void()> during_allocation;
  static inline std::function<void()> during_wait;  // which then fails

  cuda::Driver make_driver() override {
    cuda::Driver driver = FastPathTest::make_driver();
    driver.cuMemAlloc_v2 = [](CUdeviceptr* address, std::size_t bytes) {
      const CUresult result = test::fake::allocate(address, bytes);
      if (const auto call = std::exchange(during_allocation, nullptr)) call();
      return result;
    };
    driver.cuEventSynchronize = [](CUevent event) {
      const auto call = std::exchange(during_wait, nullptr);
      if (!call) return test::fake::wait(event);
      call();
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    };
    driver.cuMemFreeHost = [](void*) { return CUDA_SUCCESS; };
    driver.cuPointerGetAttribute = [](void*, CUpointer_attribute, CUdeviceptr) {
      return CUDA_ERROR_INVALID_VALUE;
    };
    return driver;
  }
  // As the driver would. `closed` is called while nobody is let in.
  template <typename Closed>
  void end_and_revive(const Closed& closed) {
    allocator_->endings().end(
        context_, [] { return CUDA_SUCCESS; },
        [&](CUresult) {
          closed();
          return true;
        });
    ASSERT_EQ(allocator_->registry().current(), context_);
  }
  void end_and_revive() {
    end_and_revive([] {});
  }
  // The next wait for the GPU is told that the context has ended.
  void end_during_wait() {
    gpu.work.store(Work::held);
    during_wait = [this] { end_and_revive(); };
  }
  void expect_usable() {
    gpu.work.store(Work::none);
    EXPECT_FALSE(during_wait) << "nobody has waited";
    EXPECT_EQ(context_->incarnation(), 2u);
    EXPECT_TRUE(context_->usable()) << "the error was the old life's";
  }
};

TEST_F(TwoLivesTest, WhatAThreadHasReclaimedStaysOutOfTheNextLife) {
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<CUdeviceptr> old = allocate_several(20, kBlockBytes);
    std::atomic<ThreadCache*> cache{nullptr};
    std::atomic<bool> ends{false};
    std::thread other([&] {
      free_all(old);  // a class that this thread never requested: it keeps none
      ThreadCache* const own = thread_cache(*context_);
      {
        const ThreadCache::Guard guard(*own);
        own->flush(context_->ordering().epochs());
      }
      BlockList reclaimed;
      EXPECT_EQ(context_->ordering().poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
      EXPECT_TRUE(reclaimed.empty());
      cache = own;
      while (!ends) std::this_thread::yield();
      allocator_->idle().reclaim(*context_, *own);
    });
    while (cache == nullptr) std::this_thread::yield();
    end_and_revive([&] {
      const auto waits = [&] {
        const ThreadCache::Guard guard(*cache);
        return cache.load()->waiting_bytes() != 0;
      };
      EXPECT_TRUE(waits());
      ends = true;
      while (waits()) std::this_thread::yield();
    });
    const std::vector<CUdeviceptr> next = allocate_several(20, kBlockBytes);
    other.join();
    ASSERT_EQ(context_->cache().bytes(), 0u) << "it is live, or the driver's";
    free_all(next);
    expect_identity();
  }
}

TEST_F(TwoLivesTest, MemoryAllocatedBesideTheEndIsNoBlockOfTheNextLife) {
  for (int round = 0; round < kRounds; ++round) {
    std::thread other;
    during_allocation = [&] {
      other = std::thread([&] { end_and_revive(); });
      while (!context_->gate().is_closed()) std::this_thread::yield();
    };
    const CUdeviceptr old = gpu.next_address;
    CUdeviceptr address = 0;
    Patience patience;
    EXPECT_EQ(allocator_->allocations().try_allocate(kBlockBytes, &address, patience),
              std::nullopt);
    other.join();
    ASSERT_EQ(allocator_->blocks().find(old), nullptr) << "it went with its context";
    EXPECT_EQ(now(Gauge::held_bytes), 0);
  }
}

TEST_F(TwoLivesTest, AFreeThatTheEndInterruptsLeavesTheNextLifeUsable) {  // I7
  start({{"CUPOOL_FREE_MODE", "sync"}});
  const CUdeviceptr address = allocate(kBlockBytes);
  end_during_wait();
  EXPECT_EQ(allocator_->frees().try_free(address), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  expect_usable();
}

TEST_F(TwoLivesTest, AFreeOfAFullBatchThatTheEndInterruptsLeavesTheNextLifeUsable) {  // I7
  start({{"CUPOOL_MAX_PENDING", "1M"}});
  const std::vector<CUdeviceptr> all = allocate_several(2000, kBlockBytes);
  end_during_wait();
  for (const CUdeviceptr address : all) {
    if (!during_wait) break;
    allocator_->frees().try_free(address);
  }
  expect_usable();
}

TEST_F(TwoLivesTest, ASynchronisationThatTheEndInterruptsLeavesTheNextLifeUsable) {  // I7
  const auto real = [&] {
    end_and_revive();
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  };
  EXPECT_EQ(
      allocator_->synchronization().of_context(context_, Synchronization::Failure::counted, real),
      CUDA_ERROR_CONTEXT_IS_DESTROYED);
  expect_usable();
}

class TwoLivesOfHostMemoryTest : public TwoLivesTest {
 protected:
  static constexpr std::size_t kMiB = 1 << 20;

  void SetUp() override {
    PendingWork::reset();
    TwoLivesTest::SetUp();
  }
  void TearDown() override {
    PendingWork::reset();
    TwoLivesTest::TearDown();
  }
  void* allocate_host() {
    static std::uintptr_t next = 0x7200000000;
    void* address = nullptr;
    const auto real = [&](std::size_t bytes) {
      address = reinterpret_cast<void*>(next);
      next += bytes;
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(allocator_->host().allocate(&address, kMiB, 0, real), CUDA_SUCCESS);
    return address;
  }
  void free_during_the_end(void* address) {
    PendingWork::submitted();
    end_during_wait();
    EXPECT_EQ(allocator_->host().try_free(address), std::nullopt) << "the driver answers";
    expect_usable();
  }
};

TEST_F(TwoLivesOfHostMemoryTest, AFreeThatTheEndInterruptsLeavesTheNextLifeUsable) {  // I7
  start({{"CUPOOL_HOST_MAX_CACHED", "4M"}, {"CUPOOL_FREE_MODE", "sync"}});
  free_during_the_end(allocate_host());
}

TEST_F(TwoLivesOfHostMemoryTest, AFullCacheThatTheEndInterruptsLeavesTheNextLifeUsable) {  // I7
  start({{"CUPOOL_HOST_MAX_CACHED", "4M"}, {"CUPOOL_FREE_MODE", "auto"}});
  std::vector<void*> all;
  for (int i = 0; i < 5; ++i) all.push_back(allocate_host());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(allocator_->host().try_free(all[i]), CUDA_SUCCESS);
  free_during_the_end(all[4]);
}

}  // namespace
}  // namespace cupool::engine
