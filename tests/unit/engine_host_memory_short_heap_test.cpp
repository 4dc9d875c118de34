// SPDX-License-Identifier: Apache-2.0
// Memory with a heap that gives nothing: the program's call is answered as by the driver, and what
// cupool cannot record of page-locked memory is taken for the worst (fail open, contract 2).
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "empty_heap.h"
#include "engine/reclaim/pending_work.h"
#include "engine/reclaim/pinned_memory.h"
#include "engine/serve/host_memory.h"
#include "engine_fast_path_fixture.h"

// Those of the whole test program.
void* operator new(std::size_t bytes) {
  void* const memory = cupool::test::heap_is_empty ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// A sanitizer has this one for itself, and would see memory of its own in the operators below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return cupool::test::heap_is_empty ? nullptr : std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace cupool::engine {
namespace {

class ShortHeapTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kPage = 4096;

  void SetUp() override {
    PendingWork::reset();
    PinnedMemory::reset();
    FastPathTest::SetUp();
    start({{"CUPOOL_HOST_MAX_CACHED", "64M"}, {"CUPOOL_FREE_MODE", "auto"}});
  }
  void TearDown() override {
    PendingWork::reset();
    PinnedMemory::reset();
    FastPathTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver();
    driver.cuMemFreeHost = [](void*) { return CUDA_SUCCESS; };
    return driver;
  }
  HostMemory& host() { return allocator_->host(); }
  void* allocate_page() {
    void* address = nullptr;
    const auto real = [&](std::size_t bytes) {
      address = reinterpret_cast<void*>(next_);
      next_ += bytes;
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(host().allocate(&address, kPage, 0, real), CUDA_SUCCESS);
    return address;
  }
  bool is_argument(std::uintptr_t word) const {
    void* extra[] = {CU_LAUNCH_PARAM_END};
    void* parameters[] = {&word};
    return PinnedMemory::is_argument(*driver_, nullptr, parameters, extra);
  }

  std::uintptr_t next_ = 0x7300000000;
};

TEST_F(ShortHeapTest, MemoryOfTheDriverIsFreed) {
  const test::EmptyHeap none;
  EXPECT_EQ(allocator_->pass_through().free(0x7500000000, [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  EXPECT_EQ(allocator_->pass_through().free_host(reinterpret_cast<void*>(kPage),
                                                 [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
}

TEST_F(ShortHeapTest, WhatIsNotOnRecordMayBeAnArgumentOfAnyKernel) {  // contract 2
  EXPECT_FALSE(is_argument(5));
  std::uint64_t number = 1;
  {
    const test::EmptyHeap none;
    number = PinnedMemory::add(reinterpret_cast<void*>(kPage), kPage);
  }
  EXPECT_EQ(number, 0u);
  EXPECT_TRUE(PinnedMemory::any());
  EXPECT_TRUE(is_argument(5));
  // Also once all that is on record is gone.
  const void* const other = reinterpret_cast<void*>(2 * kPage);
  PinnedMemory::remove(other, PinnedMemory::add(other, kPage));
  EXPECT_TRUE(PinnedMemory::any());
  EXPECT_TRUE(is_argument(5));
  PinnedMemory::end_without_lock();
  EXPECT_FALSE(PinnedMemory::any());
}

// The table of blocks has to grow for the 2,049th.
TEST_F(ShortHeapTest, ABlockWithoutARecordIsTheDrivers) {
  for (int i = 0; i < 2048; ++i) allocate_page();
  const std::uint64_t known = host().blocks().bytes();
  void* address = nullptr;
  {
    const test::EmptyHeap none;
    address = allocate_page();
  }
  EXPECT_NE(address, nullptr);
  EXPECT_EQ(host().blocks().bytes(), known);
  EXPECT_EQ(host().blocks().find(address), nullptr);
  EXPECT_EQ(host().try_free(address), std::nullopt);
  EXPECT_EQ(host().free_by_driver(address, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  // With memory again it grows.
  address = allocate_page();
  EXPECT_NE(host().blocks().find(address), nullptr);
}

TEST_F(ShortHeapTest, WhatLiesIdleGoesBack) {
  EXPECT_EQ(host().try_free(allocate_page()), CUDA_SUCCESS);
  Patience patience(0);
  const test::EmptyHeap none;
  EXPECT_TRUE(host().give_back(patience));
}

TEST_F(ShortHeapTest, AContextThatEndsTakesItsMemoryFromTheRecord) {  // I8
  const void* const live = allocate_page();
  void* const idle = allocate_page();
  EXPECT_EQ(host().try_free(idle), CUDA_SUCCESS);
  {
    const test::EmptyHeap none;
    allocator_->endings().context_gone(*context_);
  }
  EXPECT_EQ(host().blocks().bytes(), 0u);
  EXPECT_EQ(host().blocks().find(live), nullptr);
  EXPECT_EQ(host().blocks().find(idle), nullptr);
  EXPECT_FALSE(PinnedMemory::any());
}

// Memory that the driver serves.
class PassedShortHeapTest : public FastPathTest {
 protected:
  PassThrough& pass_through() { return allocator_->pass_through(); }
  CUdeviceptr allocate_passed() {
    CUdeviceptr address = next_ += kBytes;
    Patience patience;
    EXPECT_EQ(pass_through().allocate(
                  kBytes, [&] { return kBytes; }, &address, patience, [] { return CUDA_SUCCESS; }),
              CUDA_SUCCESS);
    return address;
  }
  CUresult free_as(CUdeviceptr address, CUresult answer) {
    return pass_through().free(address, [&] { return answer; });
  }
  static constexpr std::uint64_t kBytes = 4096;
  CUdeviceptr next_ = 0x7500000000;
};

// The table of blocks has to grow for the 2,049th.
TEST_F(PassedShortHeapTest, MemoryWithoutARecordIsTheDrivers) {
  for (int i = 0; i < 2048; ++i) allocate_passed();
  const std::int64_t known = now(Gauge::passthrough_bytes);
  CUdeviceptr address = 0;
  {
    const test::EmptyHeap none;
    address = allocate_passed();
  }
  EXPECT_EQ(now(Gauge::passthrough_bytes), known);
  EXPECT_EQ(allocator_->blocks().find(address), nullptr);
  EXPECT_EQ(free_as(address, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(count(Counter::free_foreign_total), 1u);
}

// The heap may be short of what the call needs itself.
TEST_F(PassedShortHeapTest, ARefusalIsTheProgramsOnceIdleMemoryWasGivenBack) {  // contract 3, 4
  pairs(20, kBytes);
  Patience patience;
  patience.wants(kBytes);
  OutOfMemory& out_of_memory = allocator_->out_of_memory();
  int calls = 0;
  const auto real = [&] {
    ++calls;
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  {
    const test::EmptyHeap none;
    EXPECT_EQ(out_of_memory.retry(real, patience), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_GT(calls, 0) << "idle memory went back before";
    EXPECT_EQ(out_of_memory.retry_on(0, real, patience), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(out_of_memory.retry_anywhere(real, patience), CUDA_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_EQ(now(Gauge::held_bytes), 0);
  expect_identity();
}

}  // namespace
}  // namespace cupool::engine
