// SPDX-License-Identifier: Apache-2.0
// What goes back to the driver of stream-ordered memory that lies idle: what the GPU has left,
// whatever fails, and at the end of a context all of it in order (contract 4, 12, I1, I7).
#include "engine/serve/async_idle.h"

#include <optional>
#include <vector>

#include "engine_async_idle_fixture.h"

namespace cupool::engine {
namespace {

// An idle GPU needs some time to pass a fence. A thread that loses its processor meanwhile looks
// once only.
TEST_F(AsyncIdleTest, AFenceIsAskedForMoreThanOnce) {
  constexpr int kAttempts = 1000;
  leave_idle(kUnit);
  std::uint64_t given = 0;
  for (int attempt = 0; given == 0 && attempt < kAttempts; ++attempt) {
    idle_driver.busy_queries = 2;
    given = idle().give_back(*context_, To::pool).blocks;
  }
  EXPECT_EQ(given, kUnit);
}

TEST_F(AsyncIdleTest, ABusyGpuKeepsItsMemoryAndNobodyWaits) {  // I1
  gpu.work.store(Work::held);
  const CUdeviceptr address = leave_idle(kUnit);
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
  EXPECT_NE(test::pools->pool_of(address), nullptr);
  gpu.finish();
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, kUnit);
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
}

// As many as the program asks for free memory beside a stream that is busy for long.
TEST_F(AsyncIdleTest, AFenceIsRecordedOnceForTheSameFrees) {
  gpu.work.store(Work::held);
  leave_idle(kUnit);
  for (int look = 0; look < 10; ++look) {
    EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
    EXPECT_EQ(idle_driver.records, 1);
  }
  leave_idle(2 * kUnit);
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
  EXPECT_EQ(idle_driver.records, 2);
  gpu.finish();
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 3 * kUnit);
  EXPECT_EQ(idle_driver.records, 2);
}

// Its next work there is behind what has used the memory.
TEST_F(AsyncIdleTest, AStreamThatRunsOutOfMemoryGetsItsOwnBlocksWithoutAWait) {  // I1
  gpu.work.store(Work::held);
  const CUdeviceptr idle_block = leave_idle(kUnit);
  CUdeviceptr address = 0;
  const auto refused_once = [&](std::size_t wanted) {
    if (idle_driver.frees == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate_by_driver(&address, stream_)(wanted);
  };
  EXPECT_EQ(async().allocate(&address, 4 * kUnit, nullptr, stream_, refused_once),
            AsyncMemory::Served::by_driver);
  EXPECT_EQ(idle_driver.freed_in, stream_);
  EXPECT_EQ(test::pools->pool_of(idle_block), nullptr);
  EXPECT_EQ(idle_bytes(), 0u);
}

TEST_F(AsyncIdleTest, AnotherStreamGetsNoneOfThemInThatWay) {
  const CUdeviceptr idle_block = leave_idle(kUnit);
  CUdeviceptr address = 0;
  const auto refused = [](std::size_t) { return CUDA_ERROR_OUT_OF_MEMORY; };
  CUstream const other = reinterpret_cast<CUstream>(0x77000);
  EXPECT_EQ(async().allocate(&address, 4 * kUnit, nullptr, other, refused),
            AsyncMemory::Served::no);
  EXPECT_NE(test::pools->pool_of(idle_block), nullptr);
  EXPECT_EQ(idle_driver.frees, 0);
}

TEST_F(AsyncIdleTest, AStickyErrorOfTheFenceEndsTheServing) {  // I7
  gpu.work.store(Work::held);
  const CUdeviceptr address = leave_idle(kUnit);
  idle_driver.queries = 0;
  idle_driver.query = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
  EXPECT_FALSE(context_->usable());
  EXPECT_EQ(idle_driver.queries, 1) << "nobody asks again";
  EXPECT_NE(test::pools->pool_of(address), nullptr);
}

// What the fence has shown complete of cudaMalloc's memory is not forgotten.
TEST_F(AsyncIdleTest, ALookAlsoReclaimsFreedBlocks) {
  gpu.work.store(Work::held);
  leave_idle(kUnit);
  const CUdeviceptr address = allocate(kUnit);
  free(address);
  context_->threads().drain(Drain::all);
  ASSERT_GT(now(Gauge::retired_bytes), 0);
  gpu.finish();
  gpu.work.store(Work::none);
  EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, kUnit);
  EXPECT_EQ(now(Gauge::retired_bytes), 0);
  EXPECT_EQ(context_->cache().bytes(), kUnit);
  expect_identity();
}

// Contract 4: a stream takes device memory, so that none may be had just when memory is short.
TEST_F(AsyncIdleTest, WithoutAStreamTheMemoryGoesBackAllTheSame) {
  const CUdeviceptr address = leave_idle(kUnit);
  idle_driver.stream_create = CUDA_ERROR_OUT_OF_MEMORY;
  in_thread([&] { EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, kUnit); });
  EXPECT_EQ(idle_bytes(), 0u);
  EXPECT_EQ(async().blocks().find(address), nullptr);
  EXPECT_EQ(idle_driver.plain_frees, 1);
  EXPECT_EQ(idle_driver.frees, 0);
}

// The next step of decay tries again.
TEST_F(AsyncIdleTest, WhatTheDriverRefusesIsNotTriedAgainAtOnce) {
  constexpr std::uint64_t kSlice = 64 << 20;
  constexpr std::uint64_t kBytes = 16 << 20;
  CUdeviceptr addresses[2 * kSlice / kBytes];
  for (CUdeviceptr& address : addresses) {
    ASSERT_EQ(allocate_in_stream(kBytes, &address), AsyncMemory::Served::by_driver);
  }
  for (const CUdeviceptr address : addresses) {
    ASSERT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
  }
  for (std::uint32_t i = 0; i < StreamCaches::kDecaySteps; ++i) idle().end_decay_step();
  idle_driver.stream_create = idle_driver.plain_free = CUDA_ERROR_OUT_OF_MEMORY;
  in_thread([&] { EXPECT_FALSE(idle().give_back_unneeded()); });
  EXPECT_EQ(idle_bytes(), 2 * kSlice);
}

TEST_F(AsyncIdleTest, AtTheEndMemoryGoesBackBehindTheWorkOfTheContext) {  // I1
  gpu.work.store(Work::held);
  const CUdeviceptr address = leave_idle(kUnit);
  idle().context_ends(*context_);
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
  EXPECT_NE(idle_driver.recorded, nullptr);
  EXPECT_EQ(idle_driver.waited_for, idle_driver.recorded);
  EXPECT_EQ(idle_driver.waiting, idle_driver.freed_in);
}

TEST_F(AsyncIdleTest, TheEndOfAContextWithoutIdleMemoryCostsNothing) {
  CUdeviceptr live = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &live), AsyncMemory::Served::by_driver);
  idle_driver.records = 0;
  idle().context_ends(*context_);
  EXPECT_EQ(idle_driver.records, 0);
}

// An event of the context would harm the capture.
TEST_F(AsyncIdleTest, ACaptureIsLeftAloneAtTheEndOfAContext) {  // contract 9
  const CUdeviceptr address = leave_idle(kUnit);
  static int created = 0;
  created = 0;
  driver_->cuEventCreate = [](CUevent* event, unsigned flags) {
    ++created;
    return test::fake::create_event(event, flags);
  };
  Serving::capture_begins();
  idle().context_ends(*context_);
  EXPECT_EQ(created, 0);
  CUevent event = nullptr;
  ASSERT_EQ(test::fake::create_event(&event, 0), CUDA_SUCCESS);
  idle_driver.records = 0;
  EXPECT_FALSE(context_->ordering().barriers().record_behind(event)) << "nor if it begins now";
  EXPECT_EQ(idle_driver.records, 0);
  EXPECT_NE(test::pools->pool_of(address), nullptr);
  Serving::captures_end(1);
}

// The pool outlives its context, and the memory would be lost.
TEST_F(AsyncIdleTest, WhatCannotGoBackInOrderIsReleasedAfterTheContext) {  // I1
  const auto expect_left = [&](const char* what) {
    const CUdeviceptr address = leave_idle(kUnit);
    idle().context_ends(*context_);
    EXPECT_NE(test::pools->pool_of(address), nullptr) << what << ": the GPU may use it";
    EXPECT_EQ(idle_bytes(), kUnit) << what;
    Device& device = context_->device();
    allocator_->endings().context_gone(*context_);
    EXPECT_EQ(async().blocks().find(address), nullptr) << what;
    EXPECT_TRUE(device.orphans().contains(address)) << what;
    idle_driver = IdleDriver{};
    EXPECT_EQ(allocator_->registry().current(), context_) << what;
    EXPECT_EQ(test::pools->pool_of(address), nullptr) << what << ": by the next life";
  };
  idle_driver.event_create = CUDA_ERROR_OUT_OF_MEMORY;
  expect_left("no event");
  idle_driver.stream_create = CUDA_ERROR_OUT_OF_MEMORY;
  expect_left("no stream");
  idle_driver.record = CUDA_ERROR_UNKNOWN;
  expect_left("no record");
  idle_driver.wait = CUDA_ERROR_UNKNOWN;
  expect_left("no wait");
}

TEST_F(AsyncIdleTest, AFailedContextIsAskedForNothing) {  // I7
  const CUdeviceptr address = leave_idle(kUnit);
  for (std::uint32_t i = 0; i < StreamCaches::kDecaySteps; ++i) idle().end_decay_step();
  context_->set_poisoned();
  idle_driver.frees = 0;
  idle_driver.records = 0;
  EXPECT_FALSE(idle().give_back_unneeded());
  EXPECT_EQ(idle().give_back(*context_, To::device).blocks, 0u);
  idle().give_all_back();
  idle().context_ends(*context_);
  EXPECT_EQ(idle_driver.frees, 0);
  EXPECT_EQ(idle_driver.records, 0);
  EXPECT_NE(async().blocks().find(address), nullptr);
}

TEST_F(AsyncIdleTest, ACallThatRanOutOfMemoryGetsIt) {  // contract 4
  const ContextVisit visit(*context_);                  // asks no neighbours
  ASSERT_FALSE(allocator_->out_of_memory().give_back_cached(*context_));
  leave_idle(kMany);
  EXPECT_TRUE(allocator_->out_of_memory().give_back_cached(*context_));
  EXPECT_EQ(test::pools->reserved(), 0u);
  // A call of the program's in the same place.
  leave_idle(kMany);
  int calls = 0;
  const auto real = [&] {
    ++calls;
    return test::pools->reserved() == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  };
  EXPECT_EQ(allocator_->out_of_memory().retry(real), CUDA_SUCCESS);
  EXPECT_EQ(calls, 1);
}

// Contract 4. What the driver lacks it may wait for until another stream's kernel is over.
TEST_F(AsyncIdleTest, MemoryThatTheDriverLacksGoesBackBeforeItIsAsked) {
  OutOfMemory& out_of_memory = allocator_->out_of_memory();
  leave_idle(kMany);
  const std::uint64_t reserved = test::pools->reserved();
  const std::uint64_t free = gpu.capacity - reserved;
  out_of_memory.before_driver_call(context_, free);
  out_of_memory.before_driver_call(nullptr, free + 1);
  EXPECT_EQ(test::pools->reserved(), reserved);
  test::pools->mps = true;  // how much is free is not known
  out_of_memory.before_driver_call(context_, free + 1);
  EXPECT_EQ(test::pools->reserved(), reserved);
  test::pools->mps = false;
  out_of_memory.before_driver_call(context_, free + 1);
  EXPECT_EQ(test::pools->reserved(), 0u);
  leave_idle(kUnit);  // less than a pool would give back
  out_of_memory.before_driver_call(context_, gpu.capacity);
  EXPECT_EQ(idle_bytes(), kUnit);
}

// There is no pool of cupool's own.
TEST_F(AsyncIdleTest, ANeighbourGetsItBesidePlainMemory) {
  start({{"CUPOOL_ASYNC", "serve"}, {"CUPOOL_BACKEND", "malloc"}});
  leave_idle(kMany);
  ASSERT_EQ(context_->device().pools(), nullptr);
  const std::uint64_t reserved = test::pools->reserved();
  EXPECT_EQ(allocator_->out_of_memory().give_to_neighbour(context_->device().id(), 0),
            std::optional<std::uint64_t>(reserved));
  EXPECT_EQ(test::pools->reserved(), 0u);
}

// The driver's frees take time, in which the process may end.
TEST_F(AsyncIdleTest, DecayGivesBackInSlices) {
  constexpr std::uint64_t kSlice = 64ull << 20;
  constexpr int kBlocks = 5;
  constexpr std::uint64_t kBytes = kSlice / 2;
  const auto free_in_stream = [&](CUdeviceptr address) {
    EXPECT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
  };
  // A second context, found after the first, with less than a slice.
  const auto other = reinterpret_cast<CUcontext>(0x99000);
  ASSERT_NE(enter(other), context_);
  CUdeviceptr of_other = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &of_other), AsyncMemory::Served::by_driver);
  ASSERT_EQ(enter(nullptr), context_);
  CUdeviceptr addresses[kBlocks];
  for (CUdeviceptr& address : addresses) {
    ASSERT_EQ(allocate_in_stream(kBytes, &address), AsyncMemory::Served::by_driver);
  }
  for (const CUdeviceptr address : addresses) free_in_stream(address);
  enter(other);
  free_in_stream(of_other);
  enter(nullptr);
  EXPECT_FALSE(idle().give_back_unneeded()) << "not for long yet";
  for (std::uint32_t i = 0; i < StreamCaches::kDecaySteps; ++i) idle().end_decay_step();
  EXPECT_TRUE(idle().give_back_unneeded());
  EXPECT_EQ(idle_bytes(), kBlocks * kBytes - kSlice) << "and what the other had";
  EXPECT_TRUE(idle().give_back_unneeded());
  EXPECT_FALSE(idle().give_back_unneeded());
  EXPECT_EQ(idle_bytes(), 0u);
}

// Contract 4: a stream takes device memory, so that none can be had just when memory is short.
TEST_F(AsyncIdleTest, WithoutAStreamNothingIsLostThoughAllCachesAreInUse) {
  constexpr std::uint64_t kBytes = 64 << 10;
  const auto stream = [](std::uintptr_t n) {
    return reinterpret_cast<CUstream>(0x100000 + (n << 8));
  };
  std::vector<CUdeviceptr> all(StreamCaches::kMostStreams);
  for (std::size_t n = 0; n < all.size(); ++n) {
    ASSERT_EQ(async().allocate(&all[n], kBytes, nullptr, stream(n),
                               allocate_by_driver(&all[n], stream(n))),
              AsyncMemory::Served::by_driver);
  }
  for (std::size_t n = 0; n < all.size(); ++n) {
    ASSERT_EQ(async().try_free(all[n], stream(n)), CUDA_SUCCESS);
  }
  const std::uint64_t before = idle_bytes();
  ASSERT_GT(before, 0u);
  idle_driver.stream_create = idle_driver.plain_free = CUDA_ERROR_OUT_OF_MEMORY;
  in_thread([&] {
    EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, 0u);
    EXPECT_EQ(idle_bytes(), before);
    idle_driver.stream_create = CUDA_SUCCESS;
    EXPECT_EQ(idle().give_back(*context_, To::pool).blocks, before);
    EXPECT_EQ(idle_bytes(), 0u);
  });
}

}  // namespace
}  // namespace cupool::engine
