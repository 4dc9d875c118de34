// SPDX-License-Identifier: Apache-2.0
// Calls on their way while their context ends and the driver gives its handle
// to the next one: what is of the old life stays out of the new one (contract
// 10, I8).
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
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

}  // namespace
}  // namespace cupool::engine
