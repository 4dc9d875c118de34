// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory where something is in the way: streams, pools and contexts of which not all
// is known, memory that is known outside or came back unseen, and frees that the driver refuses
// (contract 12).
#include <gtest/gtest.h>

#include "engine/reclaim/dependent_launches.h"
#include "engine/reclaim/lane.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

struct StreamsDriver {
  CUresult context_of_stream = CUDA_SUCCESS;
  CUcontext context = nullptr;  // null: the fake driver's
  CUresult flags_result = CUDA_SUCCESS;
  unsigned flags = CU_STREAM_NON_BLOCKING;
  CUresult current_pool = CUDA_SUCCESS;
  CUresult default_pool = CUDA_SUCCESS;
  CUresult current = CUDA_SUCCESS;  // the answer of cuCtxGetCurrent
  bool no_current = false;          // no context is current
  int frees_refused = 0;            // so often cuMemFreeAsync fails
};
StreamsDriver streams_driver;

class AsyncMemoryRefusalsTest : public PoolEngineTest {
 protected:
  using Served = AsyncMemory::Served;
  static constexpr std::uint64_t kBytes = 64 << 10;

  void SetUp() override {
    streams_driver = StreamsDriver{};
    PoolEngineTest::SetUp();
    start({{"CUPOOL_BACKEND", "pool"}, {"CUPOOL_ASYNC", "serve"}});
    ASSERT_TRUE(AsyncMemory::is_on());
  }
  void TearDown() override {
    streams_driver = StreamsDriver{};
    gpu.work.store(Work::none);
    ContextRegistry::current_may_change();
    PoolEngineTest::TearDown();
    start({});  // for other tests it is off
    DependentLaunch::reset();
    PoolEngineTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = streams_driver.no_current ? nullptr : test::fake::context();
      return streams_driver.current;
    };
    driver.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      const CUcontext other = streams_driver.context;
      *context = other == nullptr ? test::fake::context() : other;
      return streams_driver.context_of_stream;
    };
    driver.cuStreamGetFlags = [](CUstream, unsigned* flags) {
      *flags = streams_driver.flags;
      return streams_driver.flags_result;
    };
    driver.cuDeviceGetMemPool = [](CUmemoryPool* pool, CUdevice device) {
      const CUresult result = test::fake::current_pool(pool, device);
      return streams_driver.current_pool == CUDA_SUCCESS ? result : streams_driver.current_pool;
    };
    driver.cuDeviceGetDefaultMemPool = [](CUmemoryPool* pool, CUdevice device) {
      const CUresult result = test::fake::default_pool(pool, device);
      return streams_driver.default_pool == CUDA_SUCCESS ? result : streams_driver.default_pool;
    };
    driver.cuMemFreeAsync = [](CUdeviceptr address, CUstream stream) {
      if (streams_driver.frees_refused == 0) return test::fake::free_to_pool(address, stream);
      --streams_driver.frees_refused;
      return CUDA_ERROR_UNKNOWN;
    };
    return driver;
  }
  AsyncMemory& async() { return allocator_->default_pools().async(); }
  static CUstream stream(std::uintptr_t number) {
    return reinterpret_cast<CUstream>(0x60000 + 0x100 * number);
  }
  static CUmemoryPool pool() {
    CUmemoryPool pool = nullptr;
    test::fake::default_pool(&pool, 0);
    return pool;
  }
  Served allocate_in(CUstream in, CUdeviceptr* address, CUmemoryPool from = nullptr) {
    return async().allocate(address, kBytes, from, in, [&](std::size_t wanted) {
      return test::fake::allocate_from_pool(address, wanted, pool(), in);
    });
  }
  CUdeviceptr block_of(CUstream in) {
    CUdeviceptr address = 0;
    EXPECT_EQ(allocate_in(in, &address), Served::by_driver);
    return address;
  }
};

TEST_F(AsyncMemoryRefusalsTest, AStreamGetsBackWhatItFreed) {
  const CUdeviceptr address = block_of(stream(1));
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(async().try_free(address, stream(2)), CUDA_ERROR_INVALID_VALUE) << "elsewhere, too";
  EXPECT_EQ(async().try_allocate(kBytes, nullptr, stream(1)), address);
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_EQ(allocate_in(stream(1), &again, pool()), Served::from_cache);
  EXPECT_EQ(again, address);
}

TEST_F(AsyncMemoryRefusalsTest, WhatIsNotKnownOfAStreamIsTheDrivers) {
  CUdeviceptr address = 0;
  const auto expect_drivers = [&](const char* what) {
    static std::uintptr_t number = 100;
    EXPECT_EQ(allocate_in(stream(++number), &address), Served::no) << what;
    const StreamsDriver wrong = streams_driver;
    streams_driver = StreamsDriver{};
    EXPECT_EQ(allocate_in(stream(number), &address), Served::by_driver) << what;
    streams_driver = wrong;
    EXPECT_EQ(async().try_free(address, stream(++number)), std::nullopt) << what;
    streams_driver = StreamsDriver{};
  };
  streams_driver.context_of_stream = CUDA_ERROR_UNKNOWN;
  expect_drivers("no context");
  streams_driver.context = reinterpret_cast<CUcontext>(0x9900);
  expect_drivers("another context");
  streams_driver.current_pool = CUDA_ERROR_UNKNOWN;
  expect_drivers("no current pool");
  streams_driver.default_pool = CUDA_ERROR_UNKNOWN;
  expect_drivers("no default pool");
}

TEST_F(AsyncMemoryRefusalsTest, MemoryOfOtherPoolsIsTheDrivers) {
  CUdeviceptr address = 0;
  block_of(stream(1));
  EXPECT_EQ(allocate_in(stream(1), &address, reinterpret_cast<CUmemoryPool>(0x77)), Served::no);
  EXPECT_EQ(async().try_allocate(kBytes, reinterpret_cast<CUmemoryPool>(0x77), stream(1)), 0u);
  EXPECT_EQ(async().unused_bytes(reinterpret_cast<CUmemoryPool>(0x77)), 0u);
  EXPECT_EQ(async().unused_bytes(nullptr), 0u);
  async().give_back_of(reinterpret_cast<CUmemoryPool>(0x77));
  {
    const std::lock_guard<std::mutex> lock(test::pools->mutex);
    test::pools->currents[0] = reinterpret_cast<CUmemoryPool>(0x77);
  }
  EXPECT_EQ(allocate_in(stream(2), &address), Served::no) << "the current one is the program's";
}

// Its work is ordered by more than its own, or that is not known.
TEST_F(AsyncMemoryRefusalsTest, AStreamThatWaitsForTheLegacyStreamIsTheDrivers) {  // I1
  const CUdeviceptr address = block_of(stream(1));
  for (const bool refused : {true, false}) {
    streams_driver.flags = 0;
    streams_driver.flags_result = refused ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    CUdeviceptr other = 0;
    EXPECT_EQ(allocate_in(stream(5), &other), Served::no);
    EXPECT_EQ(async().try_free(address, stream(5)), std::nullopt);
  }
  streams_driver = StreamsDriver{};
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
}

TEST_F(AsyncMemoryRefusalsTest, MemoryKnownOutsideIsTheDriversToFree) {  // contract 8
  const CUdeviceptr address = block_of(stream(1));
  async().blocks().mark_shared_outside(address);
  async().blocks().mark_shared_outside(address + kUnit);
  EXPECT_EQ(async().try_free(address, stream(1)), std::nullopt);
  EXPECT_EQ(async().try_free(address, stream(2)), std::nullopt);
}

TEST_F(AsyncMemoryRefusalsTest, MemoryThatCameBackUnseenIsTheNewOwners) {  // I1
  for (const bool idle : {false, true}) {
    const CUdeviceptr address = block_of(stream(1));
    if (idle) {
      EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
    }
    async().forget_stale(address);
    EXPECT_EQ(async().blocks().find(address), nullptr);
    EXPECT_NE(async().try_allocate(kBytes, nullptr, stream(1)), address);
  }
}

TEST_F(AsyncMemoryRefusalsTest,
       NothingIsServedInAHostFunctionOrByAFailedContext) {  // contract 3, I7
  const CUdeviceptr address = block_of(stream(1));
  const CUdeviceptr live = block_of(stream(2));
  in_thread([&] {
    streams_driver.current = CUDA_ERROR_NOT_PERMITTED;
    CUdeviceptr other = 0;
    EXPECT_EQ(allocate_in(stream(1), &other), Served::no);
    EXPECT_EQ(async().try_free(address, stream(1)), std::nullopt);
    streams_driver.current = CUDA_SUCCESS;
  });
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
  context_->set_poisoned();
  CUdeviceptr other = 0;
  EXPECT_EQ(async().try_free(live, stream(2)), std::nullopt);
  EXPECT_EQ(allocate_in(stream(1), &other), Served::no);
  EXPECT_EQ(async().try_allocate(kBytes, nullptr, stream(1)), 0u);
  EXPECT_EQ(async().idle().give_back(*context_, AsyncIdle::To::pool).blocks, 0u);
  EXPECT_FALSE(async().idle().give_back_unneeded());
}

TEST_F(AsyncMemoryRefusalsTest, AStickyErrorOfTheDriversAllocationEndsTheServing) {  // I7
  const CUdeviceptr address = block_of(stream(1));
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
  CUdeviceptr other = 0;
  const auto fail = [](std::size_t) { return CUDA_ERROR_LAUNCH_FAILED; };
  EXPECT_EQ(async().allocate(&other, 100 * kBytes, nullptr, stream(1), fail), Served::no);
  EXPECT_FALSE(context_->usable());
  EXPECT_EQ(async().try_allocate(kBytes, nullptr, stream(1)), 0u) << "it would hide the error";
}

TEST_F(AsyncMemoryRefusalsTest, AStickyErrorOfTheDriversFreeEndsTheServing) {  // I7
  const CUdeviceptr address = block_of(stream(1));
  EXPECT_EQ(async().free_by_driver(address, [] { return CUDA_ERROR_INVALID_VALUE; }),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(context_->usable());
  EXPECT_EQ(async().free_by_driver(address, [] { return CUDA_ERROR_LAUNCH_FAILED; }),
            CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(context_->usable());
  EXPECT_NE(async().blocks().find(address), nullptr) << "it was not freed";
}

// Of memory that is not cupool's, and of a request that cupool leaves to the driver.
TEST_F(AsyncMemoryRefusalsTest, AStickyErrorOfTheProgramsOwnCallEndsTheServing) {  // I7
  const auto fail = [] { return CUDA_ERROR_LAUNCH_FAILED; };
  block_of(stream(1));
  EXPECT_EQ(async().free_by_driver(kForeign, fail), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(context_->usable());
  start({{"CUPOOL_BACKEND", "pool"}, {"CUPOOL_ASYNC", "serve"}});
  EXPECT_EQ(async().noted(fail), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(context_->usable());
}

TEST_F(AsyncMemoryRefusalsTest, AnErrorOfAContextThatEndsMeanwhileIsNotThatOfTheNext) {  // I7
  const auto end = [&] {
    allocator_->endings().context_gone(*context_);
    EXPECT_EQ(allocator_->registry().current(), context_);
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  };
  CUdeviceptr address = 0;
  EXPECT_EQ(
      async().allocate(&address, kBytes, nullptr, stream(1), [&](std::size_t) { return end(); }),
      Served::no);
  EXPECT_TRUE(context_->usable());
  address = block_of(stream(1));
  EXPECT_EQ(async().free_by_driver(address, end), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_TRUE(context_->usable());
}

TEST_F(AsyncMemoryRefusalsTest, WhereThereAreSeveralContextsAFenceTellsWhoseErrorItIs) {  // I7
  static CUresult state = CUDA_SUCCESS;
  state = CUDA_SUCCESS;
  driver_->cuCtxRecordEvent = [](CUcontext context, CUevent event) {
    return state == CUDA_SUCCESS ? test::fake::record(context, event) : state;
  };
  const CUdeviceptr address = block_of(stream(1));
  Lane::context_seen(context_->handle());
  Lane::context_seen(reinterpret_cast<CUcontext>(0x100));
  ASSERT_TRUE(several_contexts());
  const auto fail = [] { return CUDA_ERROR_LAUNCH_FAILED; };
  EXPECT_EQ(async().free_by_driver(address, fail), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_TRUE(context_->usable()) << "it was another one's";
  state = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(async().free_by_driver(address, fail), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(context_->usable());
  Lane::reset();
}

TEST_F(AsyncMemoryRefusalsTest, WithoutAContextTheDriverAnswers) {  // contract 3
  const CUdeviceptr address = block_of(stream(1));
  streams_driver.no_current = true;
  ContextRegistry::current_may_change();
  CUdeviceptr other = 0;
  EXPECT_EQ(allocate_in(stream(1), &other), Served::no);
  EXPECT_EQ(async().try_free(address, stream(1)), std::nullopt);
  streams_driver.no_current = false;
  ContextRegistry::current_may_change();
  EXPECT_EQ(allocator_->registry().current(), context_);
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS) << "it is live";
}

TEST_F(AsyncMemoryRefusalsTest, AContextThatEndsGetsNoCache) {  // I8
  CUdeviceptr address = 0;
  {
    const ContextEnd ends(*context_);
    EXPECT_EQ(allocate_in(stream(1), &address), Served::no);
  }
  EXPECT_EQ(allocate_in(stream(1), &address), Served::by_driver);
}

// The pool that cupool's own blocks come from is not the program's to order.
TEST_F(AsyncMemoryRefusalsTest, ADefaultPoolThatCupoolUsesIsTheDrivers) {
  start({{"CUPOOL_BACKEND", "pool"}, {"CUPOOL_ASYNC", "serve"}, {"CUPOOL_POOL", "default"}});
  CUdeviceptr address = 0;
  EXPECT_EQ(allocate_in(stream(1), &address), Served::no);
}

// Idle memory could keep it from the device (contract 4).
TEST_F(AsyncMemoryRefusalsTest, BesideManagedMemoryTheDriverAllocates) {
  HostReachable& reachable = allocator_->policy().host_reachable();
  CUdeviceptr address = 0;
  reachable.add(HostReachable::Kind::managed, kForeign, {kBytes, context_});
  EXPECT_EQ(allocate_in(stream(1), &address), Served::no);
  reachable.forget([](CUdeviceptr, const HostReachable::Memory&) { return true; });
  EXPECT_EQ(allocate_in(stream(1), &address), Served::by_driver);
}

TEST_F(AsyncMemoryRefusalsTest, OnceCupoolStepsAsideAFreeIsTheDrivers) {
  const CUdeviceptr address = block_of(stream(1));
  Serving::step_aside();
  EXPECT_EQ(async().try_free(address, stream(1)), std::nullopt);
  CUdeviceptr other = 0;
  EXPECT_EQ(allocate_in(stream(1), &other), Served::no);
  Serving::start();
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS) << "it is live";
}

// It may be about to run one, and what it knows of a stream is of earlier calls.
TEST_F(AsyncMemoryRefusalsTest, AThreadThatMayRunAHostFunctionIsAskedFirst) {  // contract 3
  const CUdeviceptr address = block_of(stream(1));
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
  detail::runs_no_host_functions = false;
  EXPECT_EQ(async().try_allocate(kBytes, nullptr, stream(1)), 0u);
  CUdeviceptr again = 0;
  EXPECT_EQ(allocate_in(stream(1), &again), Served::from_cache);
  EXPECT_EQ(again, address);
}

TEST_F(AsyncMemoryRefusalsTest, WhatTheDriverDoesNotTakeBackStaysIdle) {
  const CUdeviceptr address = block_of(stream(1));
  EXPECT_EQ(async().try_free(address, stream(1)), CUDA_SUCCESS);
  Serving::capture_begins();
  EXPECT_EQ(async().idle().give_back(*context_, AsyncIdle::To::pool).blocks, 0u) << "contract 9";
  EXPECT_FALSE(async().idle().give_back_unneeded());
  Serving::captures_end(1);
  streams_driver.frees_refused = 2;
  EXPECT_EQ(async().idle().give_back(*context_, AsyncIdle::To::device).blocks, 0u);
  EXPECT_EQ(streams_driver.frees_refused, 0);
  EXPECT_NE(async().blocks().find(address), nullptr);
  streams_driver.frees_refused = 1;
  EXPECT_GT(async().idle().give_back(*context_, AsyncIdle::To::device).blocks, 0u);
  EXPECT_EQ(async().blocks().find(address), nullptr);
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
}

}  // namespace
}  // namespace cupool::engine
