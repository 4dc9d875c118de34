// SPDX-License-Identifier: Apache-2.0
// What becomes of page-locked memory that lies idle, while the GPU is busy or gets work: the
// driver's free would wait for it (contract 14).
#include "engine/serve/host_memory.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "engine/reclaim/pending_work.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kBytes = 8192;
constexpr std::uint64_t kFourMib = 4 << 20;  // a few of them are more than stays whatever is used

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
  // The `number`th block, of `bytes`, from the driver. `meanwhile`: in its call.
  void* make(
      unsigned number, std::size_t bytes, const std::function<void()>& meanwhile = [] {}) {
    void* address = nullptr;
    const CUresult result = host().allocate(&address, bytes, 0, [&](std::size_t) {
      meanwhile();
      address = reinterpret_cast<void*>(0x7000000000 + 8 * kFourMib * (number + 1));
      return CUDA_SUCCESS;
    });
    EXPECT_EQ(result, CUDA_SUCCESS);
    return address;
  }
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

// Takes its time, in which other threads free theirs.
TEST_F(HostMemoryTest, ThePeakIsThatOfTheMiss) {
  constexpr unsigned kBlocks = 12;
  std::vector<void*> all;
  for (unsigned i = 0; i < kBlocks; ++i) all.push_back(make(i, kFourMib));
  void* const last = make(kBlocks, kFourMib, [&] {
    for (void* address : all) ASSERT_EQ(host().try_free(address), CUDA_SUCCESS);
  });
  EXPECT_EQ(host().try_free(last), CUDA_SUCCESS);
  EXPECT_EQ(host_calls.frees, 0) << "the program had all of them";
  EXPECT_EQ(host().blocks().bytes(), (kBlocks + 1) * kFourMib);
}

TEST_F(HostMemoryTest, AFreeBeyondTheLimitGivesBackWhatIsMissing) {
  constexpr unsigned kBlocks = 12;
  std::vector<void*> all;
  for (unsigned i = 0; i < kBlocks; ++i) all.push_back(make(i, kFourMib));
  for (void* address : all) ASSERT_EQ(host().try_free(address), CUDA_SUCCESS);
  std::vector<void*> again;
  for (int i = 0; i < 4; ++i) again.push_back(host().try_allocate(kFourMib, 0));
  void* const larger = make(kBlocks, 6 * kFourMib);
  EXPECT_EQ(host().try_free(larger), CUDA_SUCCESS);
  EXPECT_EQ(host_calls.frees, 1);
  for (void* address : again) ASSERT_NE(address, nullptr);
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

// What the driver refused was never the program's.
TEST_F(HostMemoryTest, ARefusedRequestLeavesTheLimitAsItWas) {
  void* address = nullptr;
  const auto fails = [](std::size_t) { return CUDA_ERROR_OUT_OF_MEMORY; };
  EXPECT_EQ(host().allocate(&address, 1ull << 36, 0, fails), CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<void*> all;
  for (unsigned i = 0; i < 12; ++i) all.push_back(make(i, kFourMib));
  for (void* each : all) ASSERT_EQ(host().try_free(each), CUDA_SUCCESS);
  void* const larger = make(12, 2 * kFourMib);
  EXPECT_EQ(host().try_free(larger), CUDA_SUCCESS);
  EXPECT_GE(host_calls.frees, 1) << "48 MiB were the peak, and 56 would be idle";
}

TEST_F(HostMemoryTest, AnErrorThatIsOverWithItsCallChangesNothing) {  // I7
  void* address = nullptr;
  const auto fails = [](std::size_t) { return CUDA_ERROR_OUT_OF_MEMORY; };
  EXPECT_EQ(host().allocate(&address, kBytes, 0, fails), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(context_->usable());
}

}  // namespace
}  // namespace cupool::engine
