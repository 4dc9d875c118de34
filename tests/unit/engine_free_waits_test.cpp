// SPDX-License-Identifier: Apache-2.0
// Waits of a free that the driver refuses once, always, or for good (contract 2, I7), and blocks
// that are not cached: what becomes of them where the driver does not take them back.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "engine/reclaim/message_calls.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

struct WaitsDriver {
  std::set<CUevent> of_streams;   // events that were recorded on a stream
  std::vector<CUresult> answers;  // to queries of these; then those of the GPU
  CUresult of_context = CUDA_SUCCESS;
  CUresult free = CUDA_SUCCESS;
  int frees = 0;
};
WaitsDriver waits_driver;

class FreeWaitsTest : public PoolEngineTest {
 protected:
  static constexpr std::uint64_t kBlock = 64 << 10;
  static inline const CUstream kStream = reinterpret_cast<CUstream>(0x70000);

  void SetUp() override {
    waits_driver = WaitsDriver{};
    MessageCalls::reset();
    PoolEngineTest::SetUp();
    start({{"CUPOOL_BACKEND", "pool"}, {"CUPOOL_FREE_MODE", "auto"}});
  }
  void TearDown() override {
    waits_driver = WaitsDriver{};
    gpu.work.store(Work::none);
    PoolEngineTest::TearDown();
    MessageCalls::reset();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuEventRecord = [](CUevent event, CUstream) {
      waits_driver.of_streams.insert(event);
      return test::fake::record(nullptr, event);
    };
    driver.cuCtxRecordEvent = [](CUcontext context, CUevent event) {
      if (waits_driver.of_context != CUDA_SUCCESS) return waits_driver.of_context;
      return test::fake::record(context, event);
    };
    driver.cuEventQuery = [](CUevent event) {
      std::vector<CUresult>& answers = waits_driver.answers;
      if (waits_driver.of_streams.count(event) == 0) return test::fake::query(event);
      if (answers.empty()) return CUDA_SUCCESS;
      const CUresult answer = answers.front();
      answers.erase(answers.begin());
      return answer;
    };
    driver.cuMemFree_v2 = [](CUdeviceptr address) {
      ++waits_driver.frees;
      return waits_driver.free == CUDA_SUCCESS ? test::fake::free(address) : waits_driver.free;
    };
    return driver;
  }
  // A copy to the host is pending, as far as is known, and the GPU has other work.
  CUdeviceptr block_beside_a_copy() {
    const CUdeviceptr block = allocate(kBlock);
    context_->host_work().submitted(kStream);
    EXPECT_TRUE(context_->host_work().maybe_pending());
    gpu.work.store(Work::held);
    return block;
  }
};

TEST_F(FreeWaitsTest, ARefusedWaitForACopyIsMadeAgain) {  // contract 2
  const CUdeviceptr block = block_beside_a_copy();
  waits_driver.answers = {CUDA_ERROR_UNKNOWN};
  EXPECT_EQ(allocator_->frees().try_free(block), CUDA_SUCCESS);
  EXPECT_FALSE(context_->host_work().maybe_pending());
  EXPECT_GT(now(Gauge::retired_bytes), 0) << "other work is not waited for";
}

TEST_F(FreeWaitsTest, WhereTheCopyCannotBeWaitedForTheContextIs) {  // contract 2
  const CUdeviceptr block = block_beside_a_copy();
  waits_driver.answers = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN};
  EXPECT_EQ(allocator_->frees().try_free(block), CUDA_SUCCESS);
  EXPECT_FALSE(context_->host_work().maybe_pending()) << "that covers the copy";
  EXPECT_EQ(now(Gauge::retired_bytes), 0);
}

// The free has waited for the copy alone.
TEST_F(FreeWaitsTest, AFreeBesideACopyLeavesTheRestToTheNextMessage) {  // contract 8
  allocator_->policy().let_see(FreePolicy::Others::by_messages);
  const CUdeviceptr block = block_beside_a_copy();
  waits_driver.answers = {CUDA_ERROR_UNKNOWN};
  EXPECT_EQ(allocator_->frees().try_free(block), CUDA_SUCCESS);
  EXPECT_NE(context_->ordering().epochs().unwaited(), kNoEpoch);
  EXPECT_TRUE(MessageCalls::own().any);
}

// After the wait for the copy.
TEST_F(FreeWaitsTest, AFreeWhoseFenceMeetsAStickyErrorAnswersIt) {  // I7
  const CUdeviceptr block = block_beside_a_copy();
  waits_driver.answers = {CUDA_ERROR_UNKNOWN};
  waits_driver.of_context = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(allocator_->frees().try_free(block), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(context_->usable());
}

// A stand-in for MPI is in the process, and no library of that kind.
TEST_F(FreeWaitsTest, WithoutAnRdmaLibraryTheModeStays) {  // contract 8
  MessageCalls::note_unseen_route();
  allocator_->idle().settle_free_mode();
  EXPECT_FALSE(allocator_->policy().knows_of_others());
}

// The orphans' memory is that of pools, and would be freed as such.
TEST_F(FreeWaitsTest, PlainMemoryThatTheDriverKeepsIsNoOrphan) {
  start({{"CUPOOL_BACKEND", "malloc"}});
  const CUdeviceptr block = allocate(kBlock);
  free(block);
  waits_driver.free = CUDA_ERROR_UNKNOWN;
  Patience patience(0);
  allocator_->out_of_memory().give_back_idle(*context_, patience);
  EXPECT_EQ(waits_driver.frees, 2) << "a refusal may pass";
  EXPECT_FALSE(context_->device().orphans().contains(block));
  EXPECT_EQ(now(Gauge::held_bytes), 0);
}

// The driver takes it away from the address, so its next owner gets other memory.
TEST_F(FreeWaitsTest, PlainMemoryWithADescriptorGoesBackToTheDriver) {  // contract 8
  for (const bool plain : {true, false}) {
    start({{"CUPOOL_BACKEND", plain ? "malloc" : "pool"}});
    const CUdeviceptr block = allocate(kUnit);
    allocator_->queries().mark_shared_outside(block, PointerQueries::KnownBy::descriptor,
                                              PointerQueries::KnownUntil::freed);
    waits_driver.frees = 0;
    free(block);
    Patience patience(0);
    allocator_->out_of_memory().give_back_idle(*context_, patience);
    EXPECT_EQ(waits_driver.frees, plain ? 1 : 0);
    EXPECT_EQ(now(Gauge::held_bytes), plain ? 0 : static_cast<std::int64_t>(kUnit));
  }
}

}  // namespace
}  // namespace cupool::engine
