// SPDX-License-Identifier: Apache-2.0
// Frees and allocations of page-locked memory that meet a failed context, a full cache, or work
// whose order cannot be kept (contract 2, 4 and 14).
#include "engine/serve/host_frees.h"

#include <functional>

#include "engine/reclaim/stream_use.h"
#include "engine_host_fixture.h"

namespace cupool::engine {
namespace {

using HostFreesTest = HostRefusalTest;

TEST_F(HostFreesTest, AFailedContextGetsNoIdleMemory) {  // I7
  void* const live = allocate_host(kMiB);
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  context_->set_poisoned();
  EXPECT_EQ(host().try_allocate(kMiB, 0), nullptr);
  void* address = nullptr;
  const auto fails = [](std::size_t bytes) {
    EXPECT_EQ(bytes, kMiB);
    return CUDA_ERROR_LAUNCH_FAILED;
  };
  EXPECT_EQ(host().allocate(&address, kMiB, 0, fails), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(host().try_free(live), std::nullopt);
}

TEST_F(HostFreesTest, ACallIsCountedOrMadeAgainByTheDriversAnswer) {  // contract 4
  int calls = 0;
  bool others_give = false;
  CUresult first = CUDA_SUCCESS;
  void* address = nullptr;
  const std::function<CUresult(std::size_t)> real = [&](std::size_t bytes) {
    if (others_give) {
      GivingBack part(allocator_->idle().give_backs());
      part.gave_back = true;
    }
    if (++calls == 1 && first != CUDA_SUCCESS) return first;
    address = fresh(bytes);
    return CUDA_SUCCESS;
  };
  const auto allocate = [&](void** to, CUresult answer) {
    calls = 0;
    first = answer;
    return host().allocate(to, kMiB, host_kind(kWriteCombined), real);
  };
  const auto counted = [&] { return count(Counter::host_malloc_calls_total); };
  EXPECT_EQ(allocate(&address, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(counted(), 1u);
  EXPECT_EQ(allocate(nullptr, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(counted(), 1u) << "there is nothing that was allocated";
  EXPECT_EQ(allocate(&address, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(allocate(&address, CUDA_ERROR_OUT_OF_MEMORY), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls, 1) << "nothing was given back";
  EXPECT_EQ(counted(), 1u);
  others_give = true;
  EXPECT_EQ(allocate(&address, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
  EXPECT_EQ(calls, 2);
  others_give = false;
  void* const idle = allocate_host(kMiB);
  EXPECT_EQ(host().try_free(idle), CUDA_SUCCESS);
  EXPECT_EQ(allocate(&address, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
  EXPECT_EQ(pinned.freed, std::vector<void*>{idle});
}

// What a call site learns of its calls is of memory that it was just given.
TEST_F(HostFreesTest, OnlyALiveBlockOfThatSizeHasAKind) {
  const unsigned kind = host_kind(0);
  void* const address = allocate_host(kMiB, kind);
  EXPECT_EQ(host().kind_of(address, kMiB), kind);
  EXPECT_EQ(host().kind_of(address, kMiB - 1), kNoHostKind);
  EXPECT_EQ(host().kind_of(static_cast<char*>(address) + 4096, kMiB), kNoHostKind);
  EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
  EXPECT_EQ(host().kind_of(address, kMiB), kNoHostKind);
}

TEST_F(HostFreesTest, APointerIsToAPinnedBlockOrToNobodysMemory) {  // contract 6
  const auto address = reinterpret_cast<CUdeviceptr>(allocate_host(kMiB + 5));
  driver_->cuMemGetAddressRange_v2 = [](CUdeviceptr*, std::size_t*, CUdeviceptr) {
    return CUDA_ERROR_NOT_FOUND;
  };
  const auto find = [&](CUdeviceptr at) { return allocator_->queries().find(at); };
  EXPECT_TRUE(find(address + kMiB).served());
  EXPECT_TRUE(find(address + kMiB + 5).nobodys);
  EXPECT_FALSE(find(0x5000).served());
  EXPECT_FALSE(find(0x5000).nobodys);
}

// Work came meanwhile, but the GPU has nothing left to do.
TEST_F(HostFreesTest, AFullCacheGoesOnGivingBackBehindShortWork) {
  std::vector<void*> all;
  for (int i = 0; i < 4; ++i) all.push_back(allocate_host(kMiB));
  void* const large = allocate_host(3 * kMiB);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(host().try_free(all[i]), CUDA_SUCCESS);
  for (std::uint32_t i = 0; i <= HostCache::kDecaySteps; ++i) host().end_decay_step();
  for (std::size_t i = 2; i < 4; ++i) EXPECT_EQ(host().try_free(all[i]), CUDA_SUCCESS);
  pinned.short_work_after_a_free = true;
  EXPECT_EQ(host().try_free(large), CUDA_SUCCESS);
  EXPECT_EQ(pinned.freed.size(), 3u) << "those that were idle for long, and one more";
}

// What this thread does next would overtake its work in another stream.
TEST_F(HostFreesTest, WhereNoPointCanBeRecordedTheFreeWaits) {  // contract 2
  void* address = allocate_host(kMiB);
  const auto waits = [&] { return count(Counter::host_free_waits_total); };
  const auto free_behind_work = [&] {
    gpu.work.store(Work::held);
    PendingWork::submitted();
    ThreadOrder::submits(*driver_, reinterpret_cast<CUstream>(0x7000));
    EXPECT_TRUE(ThreadOrder::has_work());
    EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
    gpu.finish();
    gpu.work.store(Work::none);
    address = allocate_host(kMiB);
  };
  free_behind_work();
  EXPECT_EQ(waits(), 0u);
  pinned.record = CUDA_ERROR_UNKNOWN;
  free_behind_work();
  EXPECT_EQ(waits(), 1u);
}

// A look that finds the GPU idle speaks against work that comes unseen.
TEST_F(HostFreesTest, SuspicionsCountInARowOnly) {
  start({{"CUPOOL_FREE_MODE", "ordered"}});
  void* address = allocate_host(kMiB);
  const auto look = [&](Work work) {
    PendingWork::Claim().settle();
    gpu.work.store(work);
    for (int i = 0; i < 600 && PendingWork::none(); ++i) {
      EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
      gpu.finish();
      address = allocate_host(kMiB);
    }
    gpu.work.store(Work::none);
  };
  for (int i = 0; i < 4; ++i) {
    look(Work::held);
    ASSERT_TRUE(PendingWork::is_trusted()) << i;
    look(Work::held);
    ASSERT_TRUE(PendingWork::is_trusted()) << i;
    look(Work::none);
  }
  for (int i = 0; i < 3; ++i) look(Work::held);
  EXPECT_FALSE(PendingWork::is_trusted());
}

}  // namespace
}  // namespace cupool::engine
