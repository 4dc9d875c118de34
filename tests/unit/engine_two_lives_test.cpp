// SPDX-License-Identifier: Apache-2.0
// Calls on their way while their context ends and the driver gives its handle
// to the next one: what is of the old life stays out of the new one (contract
// 10, I8).
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

// Whether the next life has begun by the time a thread that waits for the end
// goes on is up to the scheduler, so each test has several rounds.
class TwoLivesTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kBlockBytes = 4096;
  static constexpr int kRounds = 20;
  static inline std::function<void()> during_allocation;

  cuda::Driver make_driver() override {
    cuda::Driver driver = FastPathTest::make_driver();
    driver.cuMemAlloc_v2 = [](CUdeviceptr* address, std::size_t bytes) {
      const CUresult result = test::fake::allocate(address, bytes);
      if (const auto call = std::exchange(during_allocation, nullptr)) call();
      return result;
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

}  // namespace
}  // namespace cupool::engine
