// SPDX-License-Identifier: Apache-2.0
// What becomes of page-locked memory that lies idle, while the GPU is busy or gets work: the
// driver's free would wait for it (contract 14).
#include "engine/serve/host_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/reclaim/pending_work.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kBytes = 8192;

struct HostCalls {
  int frees = 0;
  bool busy_afterwards = false;  // the program submits work once the driver has freed a block
};
HostCalls host_calls;

class HostMemoryTest : public FastPathTest {
 protected:
  void SetUp() override {
    PendingWork::reset();
    host_calls = HostCalls{};
    FastPathTest::SetUp();
  }
  void TearDown() override {
    gpu.work.store(Work::none);
    PendingWork::reset();
    FastPathTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver();
    driver.cuMemFreeHost = [](void*) {
      ++host_calls.frees;
      if (host_calls.busy_afterwards) {
        gpu.work.store(Work::held);
        PendingWork::submitted();
      }
      return CUDA_SUCCESS;
    };
    return driver;
  }
  HostMemory& host() { return allocator_->host(); }
  // Several blocks, freed, and idle for long.
  void leave_idle(int count, std::uint32_t steps = HostCache::kDecaySteps + 1) {
    std::vector<void*> all;
    for (int i = 1; i <= count; ++i) {
      const auto real = [&](std::size_t) {
        all.push_back(reinterpret_cast<void*>(0x7000000000 + kBytes * static_cast<unsigned>(i)));
        return CUDA_SUCCESS;
      };
      void* address = nullptr;
      const CUresult result = host().allocate(&address, kBytes, 0, [&](std::size_t bytes) {
        const CUresult made = real(bytes);
        address = all.back();
        return made;
      });
      ASSERT_EQ(result, CUDA_SUCCESS);
    }
    for (void* address : all) ASSERT_EQ(host().try_free(address), CUDA_SUCCESS);
    for (std::uint32_t i = 0; i < steps; ++i) {
      host().give_back_unneeded();
      host().end_decay_step();
    }
  }
};

TEST_F(HostMemoryTest, GoesBackAsSoonAsTheGpuHasNothingToDo) {
  leave_idle(3);
  Patience patience(0);
  host().give_back(patience);
  EXPECT_EQ(host_calls.frees, 3);
  EXPECT_EQ(host().blocks().bytes(), 0u);
}

TEST_F(HostMemoryTest, StaysWhileTheGpuIsBusy) {
  leave_idle(3, 1);
  for (std::uint32_t i = 0; i < HostCache::kDecaySteps; ++i) host().end_decay_step();
  // They are idle, and could go; then the GPU gets work.
  gpu.work.store(Work::held);
  PendingWork::submitted();
  Patience only_look(0);
  Patience short_wait(3'000'000);
  EXPECT_FALSE(host().give_back(only_look));
  EXPECT_FALSE(host().give_back(short_wait));
  EXPECT_FALSE(host().give_back_unneeded());
  EXPECT_EQ(host_calls.frees, 0);
  gpu.work.store(Work::none);
}

// The end of the process waits for the thread that gives memory back.
TEST_F(HostMemoryTest, StaysOnceTheGpuGetsWorkMeanwhile) {
  for (const bool decays : {true, false}) {
    SCOPED_TRACE(decays);
    SetUp();
    host_calls.busy_afterwards = true;
    leave_idle(3);
    Patience patience(0);
    if (host_calls.frees == 0 && !decays) host().give_back(patience);
    if (host_calls.frees == 0 && decays) host().give_back_unneeded();
    EXPECT_EQ(host_calls.frees, 1);
    EXPECT_EQ(host().blocks().bytes(), 2 * kBytes);
    gpu.work.store(Work::none);
  }
}

// What the driver told the program of, no later call may hide.
TEST_F(HostMemoryTest, AStickyErrorOfTheDriversAllocationIsKnownFromThen) {  // I7
  void* address = nullptr;
  const auto fails = [](std::size_t) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  EXPECT_EQ(host().allocate(&address, kBytes, 0, fails), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(context_->usable());
}

TEST_F(HostMemoryTest, AStickyErrorOfTheDriversFreeIsKnownFromThen) {  // I7
  int elsewhere = 0;
  const auto fails = [] { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  EXPECT_EQ(host().free_by_driver(&elsewhere, fails), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(context_->usable());
}

TEST_F(HostMemoryTest, AnErrorThatIsOverWithItsCallChangesNothing) {  // I7
  void* address = nullptr;
  const auto fails = [](std::size_t) { return CUDA_ERROR_OUT_OF_MEMORY; };
  EXPECT_EQ(host().allocate(&address, kBytes, 0, fails), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(context_->usable());
}

}  // namespace
}  // namespace cupool::engine
