// SPDX-License-Identifier: Apache-2.0
// What is given back for a call that ran out of memory, and for other processes, where the driver
// refuses, time runs out, or others are at it as well (contract 4).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "engine_busy_neighbour.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

struct ScarceDriver {
  CUresult destroy = CUDA_SUCCESS;
  int destroyed = 0;
  int kept = 0;             // that it did not destroy
  int queries_refused = 0;  // so often cuEventQuery fails
  CUresult query = CUDA_SUCCESS;
  CUresult record = CUDA_SUCCESS;
  CUcontext current = nullptr;  // null: the fake driver's
  CUcontext pushed = nullptr;   // by cupool
  bool has_context = true;
  int full_looks = 0;  // so often no memory is free
  int events_refused = 0;
};
ScarceDriver scarce;

class OutOfMemoryTest : public PoolEngineTest {
 protected:
  static constexpr std::uint64_t kBlock = 64 << 10;
  using Call = std::function<CUresult()>;

  void SetUp() override {
    scarce = ScarceDriver{};
    PoolEngineTest::SetUp();
  }
  void TearDown() override {
    scarce = ScarceDriver{};
    gpu.work.store(Work::none);
    enter(nullptr);
    PoolEngineTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuStreamDestroy_v2 = [](CUstream) {
      ++(scarce.destroy == CUDA_SUCCESS ? scarce.destroyed : scarce.kept);
      return scarce.destroy;
    };
    driver.cuEventQuery = [](CUevent event) {
      if (scarce.query != CUDA_SUCCESS) return scarce.query;
      if (scarce.queries_refused == 0) return test::fake::query(event);
      --scarce.queries_refused;
      return CUDA_ERROR_UNKNOWN;
    };
    driver.cuCtxRecordEvent = [](CUcontext context, CUevent event) {
      return scarce.record == CUDA_SUCCESS ? test::fake::record(context, event) : scarce.record;
    };
    driver.cuMemGetInfo_v2 = [](std::size_t* free_bytes, std::size_t* total_bytes) {
      const CUresult result = test::fake::memory_info_with_pools(free_bytes, total_bytes);
      if (scarce.full_looks > 0) {
        --scarce.full_looks;
        *free_bytes = 0;
      }
      return result;
    };
    driver.cuEventCreate = [](CUevent* event, unsigned flags) {
      if (scarce.events_refused == 0) return test::fake::create_event(event, flags);
      --scarce.events_refused;
      return CUDA_ERROR_OUT_OF_MEMORY;
    };
    driver.cuEventDestroy_v2 = [](CUevent) { return CUDA_SUCCESS; };
    driver.cuDeviceGetUuid_v2 = [](CUuuid* uuid, CUdevice) {
      *uuid = CUuuid{};
      uuid->bytes[0] = 'O';  // no other test's, which may run beside this one
      const pid_t process = getpid();
      std::memcpy(uuid->bytes + 4, &process, sizeof process);
      return CUDA_SUCCESS;
    };
    driver.cuCtxPushCurrent_v2 = [](CUcontext context) {
      scarce.pushed = context;
      return CUDA_SUCCESS;
    };
    driver.cuCtxPopCurrent_v2 = [](CUcontext* context) {
      *context = std::exchange(scarce.pushed, nullptr);
      return CUDA_SUCCESS;
    };
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      const CUcontext current = scarce.pushed != nullptr ? scarce.pushed : scarce.current;
      *context = !scarce.has_context  ? nullptr
                 : current == nullptr ? test::fake::context()
                                      : current;
      return CUDA_SUCCESS;
    };
    return driver;
  }
  OutOfMemory& out_of_memory() { return allocator_->out_of_memory(); }
  Context* enter(CUcontext context) {
    scarce.current = context;
    ContextRegistry::current_may_change();
    return allocator_->registry().current();
  }
  void leave_idle_memory() { free_all(allocate_several(20, kBlock)); }
  // A call that finds no memory however often it is made.
  Call hopeless() {
    return [this] {
      ++calls_;
      return CUDA_ERROR_OUT_OF_MEMORY;
    };
  }
  std::optional<std::uint64_t> give_to_neighbour(std::uint64_t wanted) {
    return out_of_memory().give_to_neighbour(context_->device().id(), wanted);
  }

  int calls_ = 0;
};

TEST_F(OutOfMemoryTest, ASpareStreamThatTheDriverKeepsIsNoReasonToTryAgain) {
  leave_idle_memory();  // with cupool's own streams, for each of which there is a spare
  EXPECT_EQ(out_of_memory().retry_stream(hopeless()), CUDA_ERROR_OUT_OF_MEMORY);
  const int destroyed = scarce.destroyed;
  EXPECT_GT(destroyed, 0);
  EXPECT_GT(calls_, destroyed);
  start({{"CUPOOL_BACKEND", "pool"}});
  leave_idle_memory();
  calls_ = 0;
  scarce.destroy = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(out_of_memory().retry_stream(hopeless()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(scarce.kept, 1);
  EXPECT_EQ(calls_, 1) << "after the idle memory went back";
}

TEST_F(OutOfMemoryTest, ACallIsMadeAgainOnlyWhereSomethingCanBeGivenBack) {
  leave_idle_memory();
  const Call rescued = [&] {
    ++calls_;
    return CUDA_SUCCESS;
  };
  const auto rescues = [&] { return count(Counter::oom_rescues_total); };
  EXPECT_EQ(out_of_memory().retry(rescued), CUDA_SUCCESS);
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(rescues(), 1u);
  // A thread without a context, and one whose context has failed, which is the program's to know.
  scarce.has_context = false;
  ContextRegistry::current_may_change();
  EXPECT_EQ(out_of_memory().retry(rescued), CUDA_ERROR_OUT_OF_MEMORY);
  scarce.has_context = true;
  ASSERT_EQ(enter(nullptr), context_);
  context_->set_poisoned();
  const Call failed = [&] {
    ++calls_;
    return CUDA_ERROR_LAUNCH_FAILED;
  };
  EXPECT_EQ(out_of_memory().retry(failed), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(out_of_memory().retry_on(0, failed), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(calls_, 3);
  EXPECT_EQ(rescues(), 1u);
}

TEST_F(OutOfMemoryTest, AWaitThatFailsForGoodEndsTheServing) {  // I7
  gpu.work.store(Work::held);
  leave_idle_memory();
  context_->threads().drain(Drain::all);
  const std::uint64_t reserved = test::pools->reserved();
  scarce.query = CUDA_ERROR_LAUNCH_FAILED;
  Patience patience(1'000'000'000);
  EXPECT_FALSE(out_of_memory().give_back_idle(*context_, patience));
  EXPECT_FALSE(context_->usable());
  EXPECT_EQ(test::pools->reserved(), reserved) << "no call in a failed context";
}

// Afterwards nothing could give it back.
TEST_F(OutOfMemoryTest, RefusedEventsKeepNothingPastTheLastContext) {
  start({{"CUPOOL_BACKEND", "pool"}, {"CUPOOL_FREE_MODE", "auto"}});
  gpu.takes_ns.store(5'000'000);
  gpu.work.store(Work::timed);
  leave_idle_memory();
  ASSERT_GT(test::pools->reserved(), 0u);
  scarce.events_refused = 2;
  out_of_memory().context_ends(*context_);
  EXPECT_EQ(scarce.events_refused, 0);
  EXPECT_EQ(test::pools->reserved(), 0u);
}

// The driver's free of the chunk waits for the GPU.
TEST_F(OutOfMemoryTest, TheSmallChunkStaysWhileTheGpuIsBusy) {
  context_->small_chunk().open();
  gpu.work.store(Work::held);
  const std::uint64_t frees = gpu.frees;
  Patience patience(5'000'000);
  patience.wants(1);
  EXPECT_FALSE(out_of_memory().give_back_idle(*context_, patience));
  EXPECT_TRUE(context_->small_chunk().is_open());
  EXPECT_EQ(gpu.frees, frees);
  gpu.work.store(Work::none);
  Patience more(5'000'000);
  EXPECT_TRUE(out_of_memory().give_back_idle(*context_, more));
  EXPECT_EQ(gpu.frees, frees + 1);
}

// Other threads cache and allocate meanwhile, so that each round has something to give back.
TEST_F(OutOfMemoryTest, ACallWithAnotherCauseEmptiesNothingAgainAndAgain) {
  for (const std::uint64_t wanted : {std::uint64_t{1} << 20, gpu.capacity.load()}) {
    SCOPED_TRACE(wanted);
    calls_ = 0;
    const Call real = [&] {
      leave_idle_memory();
      return hopeless()();
    };
    leave_idle_memory();
    Patience patience;
    patience.wants(wanted);
    EXPECT_EQ(out_of_memory().retry(real, patience), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_GE(calls_, 2) << "one look decides nothing";
    EXPECT_LE(calls_, 3);
  }
}

// What is free, and what other threads have cached since, would do together.
TEST_F(OutOfMemoryTest, ACallThatMemoryMayServeIsMadeAgain) {
  const auto wanted = [] { return gpu.capacity.load() - test::FakePools::kStep; };
  const Call real = [&] {
    leave_idle_memory();
    return hopeless()();
  };
  leave_idle_memory();
  Patience patience;
  patience.wants(wanted());
  EXPECT_EQ(out_of_memory().retry(real, patience), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls_, OutOfMemory::kRetries);
}

TEST_F(OutOfMemoryTest, ARefusalByAPoolsOwnLimitGivesNothingBack) {
  leave_idle_memory();
  const unsigned trims = test::pools->trims.load();
  Patience patience;
  patience.wants(kBlock);
  EXPECT_EQ(out_of_memory().retry_anywhere(hopeless(), patience), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls_, 1) << "another thread may just have freed";
  EXPECT_EQ(test::pools->trims.load(), trims);
  EXPECT_EQ(count(Counter::neighbours_asked_total), 0u);
  // The memory that was there was taken before that call.
  calls_ = 0;
  const Call takes = [&] {
    const std::lock_guard lock(test::pools->mutex);
    test::pools->pools.begin()->second.reserved = gpu.capacity.load();
    return hopeless()();
  };
  EXPECT_EQ(out_of_memory().retry_anywhere(takes, patience), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GT(calls_, 1);
  EXPECT_GT(test::pools->trims.load(), trims);
}

// Another process may give memory back at any time.
TEST_F(OutOfMemoryTest, RoomThatIsNewerThanTheRefusalIsTried) {
  leave_idle_memory();
  scarce.full_looks = 2;  // behind the refusal, and behind the first attempt
  Patience patience;
  patience.wants(kBlock);
  const Call succeeds_then = [&] {
    return ++calls_ == 1 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  };
  EXPECT_EQ(out_of_memory().retry(succeeds_then, patience), CUDA_SUCCESS);
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(scarce.full_looks, 0);
}

// The limit of a process: the device's free memory is not its own.
TEST_F(OutOfMemoryTest, FreeMemorySaysNothingWhereTheProcessHasLessThanTheDevice) {
  leave_idle_memory();
  gpu.capacity.store(gpu.capacity.load() / 2);
  const unsigned trims = test::pools->trims.load();
  Patience patience;
  patience.wants(kBlock);
  EXPECT_EQ(out_of_memory().retry_anywhere(hopeless(), patience), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GT(test::pools->trims.load(), trims);
}

TEST_F(OutOfMemoryTest, FreeMemorySaysNothingUnderMps) {
  leave_idle_memory();
  test::pools->mps = true;
  const unsigned trims = test::pools->trims.load();
  Patience patience;
  patience.wants(kBlock);
  EXPECT_EQ(out_of_memory().retry_anywhere(hopeless(), patience), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GT(test::pools->trims.load(), trims);
}

// Who waits for the exit of a neighbour's request is the program.
TEST_F(OutOfMemoryTest, ANeighbourIsServedForSoLongOnly) {
  Context* const first = context_;
  context_ = enter(reinterpret_cast<CUcontext>(0x99000));
  ASSERT_NE(context_, first);
  Context& second = *context_;
  leave_idle_memory();
  second.threads().drain(Drain::all);
  allocator_->idle().cache_reclaimed(second);
  const std::uint64_t cached = second.cache().bytes();
  ASSERT_GT(cached, 0u);
  context_ = first;
  ASSERT_EQ(enter(nullptr), context_);
  gpu.work.store(Work::held);
  leave_idle_memory();
  context_->threads().drain(Drain::all);
  EXPECT_TRUE(give_to_neighbour(~std::uint64_t{0}).has_value());
  EXPECT_EQ(second.cache().bytes(), cached) << "the first context took all the time";
  gpu.work.store(Work::none);
  EXPECT_TRUE(give_to_neighbour(~std::uint64_t{0}).has_value());
  EXPECT_EQ(second.cache().bytes(), 0u);
}

TEST_F(OutOfMemoryTest, WhatIsCompleteGoesBackWithoutPatience) {  // contract 4
  leave_idle_memory();
  context_->threads().drain(Drain::all);
  allocator_->idle().cache_reclaimed(*context_);
  ASSERT_GT(context_->cache().bytes(), 0u);
  Patience none(0);
  const Call real = [&] {
    return context_->cache().bytes() == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  };
  EXPECT_EQ(out_of_memory().retry(real, none), CUDA_SUCCESS);
}

// The driver's call that ends it may wait for what the caller does next.
TEST_F(OutOfMemoryTest, AContextThatIsAboutToEndHoldsNoCallUpForLong) {
  leave_idle_memory();
  const ContextEnd ends(*context_);
  EXPECT_EQ(out_of_memory().retry_on(0, hopeless()), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(OutOfMemoryTest, NeighboursAreAskedThoughAllPatienceIsGone) {
  ipc::BusyNeighbour neighbour;
  ASSERT_TRUE(neighbour.valid());
  scarce.full_looks = 1000;
  Patience none(0);
  EXPECT_EQ(out_of_memory().retry(hopeless(), none), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(neighbour.requests(context_->device().id()), 1);
}

// That answer is the program's, and the call was made.
TEST_F(OutOfMemoryTest, ACallThatFailsOtherwiseIsNotMadeAgain) {  // I7
  leave_idle_memory();
  const Call real = [&] {
    ++calls_;
    context_->set_poisoned();
    return CUDA_ERROR_LAUNCH_FAILED;
  };
  EXPECT_EQ(out_of_memory().retry(real), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(calls_, 1);
}

// The driver's answer to the second call is the program's, whatever it is.
TEST_F(OutOfMemoryTest, AContextThatFailedMeanwhileAsksNoNeighbours) {  // I7
  leave_idle_memory();
  const Call real = [&] {
    context_->set_poisoned();
    return hopeless()();
  };
  const std::uint64_t before = count(Counter::neighbours_asked_total);
  EXPECT_EQ(out_of_memory().retry(real), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(count(Counter::neighbours_asked_total), before);
}

TEST_F(OutOfMemoryTest, OthersThatGiveMemoryBackAreWaitedForWithinPatience) {
  const GivingBack others(allocator_->idle().give_backs());
  const ContextVisit visit(*context_);  // asks no neighbours
  Patience patience(20'000'000);
  const std::uint64_t start = util::now_ns();
  EXPECT_EQ(out_of_memory().retry(hopeless(), patience), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(patience.over());
  EXPECT_LT(util::now_ns() - start, kLongestWaitForOthersNs);
}

TEST_F(OutOfMemoryTest, AWaitThatIsRefusedOnceIsMadeAgain) {
  start({{"CUPOOL_BACKEND", "pool"}, {"CUPOOL_FREE_MODE", "auto"}});
  gpu.takes_ns.store(5'000'000);
  gpu.work.store(Work::timed);
  leave_idle_memory();
  context_->threads().drain(Drain::all);
  scarce.queries_refused = 1;
  Patience patience(1'000'000'000);
  EXPECT_TRUE(out_of_memory().give_back_idle(*context_, patience));
  EXPECT_EQ(scarce.queries_refused, 0);
  EXPECT_TRUE(context_->usable());
  EXPECT_EQ(now(Gauge::retired_bytes), 0);
}

TEST_F(OutOfMemoryTest, ANeighbourGetsCachedBlocksButPlainOnesOnlyStay) {
  leave_idle_memory();
  // Of the time before the pools.
  Block* const plain = new_block();
  ASSERT_NE(plain, nullptr);
  plain->address = gpu.next_address.fetch_add(kUnit);
  plain->capacity = kUnit;
  plain->context = context_;
  plain->source = BlockSource::malloc;
  plain->state.store(BlockState::freed);
  BlockList list;
  list.push(plain);
  context_->cache().cache(list);
  context_->threads().drain(Drain::all);
  const std::uint64_t frees = gpu.frees;
  const auto given = give_to_neighbour(~std::uint64_t{0});
  ASSERT_TRUE(given.has_value());
  EXPECT_GT(*given, 0u);
  EXPECT_EQ(gpu.frees, frees) << "that free would wait for the GPU";
  EXPECT_EQ(context_->cache().bytes(), kUnit);
  EXPECT_EQ(test::pools->reserved(), 0u);
}

TEST_F(OutOfMemoryTest, ANeighbourThatDoesNotSayHowMuchItWantsGetsAll) {
  leave_idle_memory();
  EXPECT_EQ(give_to_neighbour(0), std::optional<std::uint64_t>(test::FakePools::kStep));
  EXPECT_EQ(test::pools->reserved(), 0u);
  EXPECT_EQ(give_to_neighbour(0), std::optional<std::uint64_t>(0));
}

}  // namespace
}  // namespace cupool::engine
