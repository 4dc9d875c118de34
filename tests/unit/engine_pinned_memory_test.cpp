// SPDX-License-Identifier: Apache-2.0
// Page-locked memory by its host address, and kernels that get such an address in either form of
// their arguments (contract 2).
#include "engine/reclaim/pinned_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace cupool::engine {
namespace {

alignas(64) std::array<unsigned char, 4096> pinned_bytes;

// A kernel of an integer, a structure of two words, and a float.
std::vector<std::size_t> sizes_of_parameters;
bool is_named_by_library = false;

CUresult parameter(std::size_t number, std::size_t* offset, std::size_t* size) {
  if (number >= sizes_of_parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  *size = sizes_of_parameters[number];
  return CUDA_SUCCESS;
}

class PinnedMemoryTest : public testing::Test {
 protected:
  PinnedMemoryTest() {
    sizes_of_parameters = {4, 16, 4};
    is_named_by_library = false;
    driver_.cuFuncGetParamInfo = [](CUfunction, std::size_t number, std::size_t* offset,
                                    std::size_t* size) {
      return is_named_by_library ? CUDA_ERROR_INVALID_HANDLE : parameter(number, offset, size);
    };
    driver_.cuKernelGetParamInfo = [](void*, std::size_t number, std::size_t* offset,
                                      std::size_t* size) {
      return parameter(number, offset, size);
    };
    PinnedMemory::add(pinned_bytes.data(), pinned_bytes.size());
  }
  ~PinnedMemoryTest() override { PinnedMemory::remove(pinned_bytes.data()); }

  std::uintptr_t inside() const { return reinterpret_cast<std::uintptr_t>(&pinned_bytes[100]); }

  // By cuLaunchKernel's array of pointers; the structure's second word is `word`.
  bool is_found(std::uintptr_t word) {
    int integer = 0;
    std::array<std::uintptr_t, 2> structure{1, word};
    float real = 0;
    void* parameters[] = {&integer, structure.data(), &real};
    return PinnedMemory::is_argument(driver_, nullptr, parameters, nullptr);
  }
  // By its buffer.
  bool is_found_packed(std::vector<void*> extra) {
    return PinnedMemory::is_argument(driver_, nullptr, nullptr, extra.data());
  }

  cuda::Driver driver_;
};

TEST_F(PinnedMemoryTest, IsKnownByEachOfItsBytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pinned_bytes.data());
  EXPECT_TRUE(PinnedMemory::any());
  EXPECT_EQ(PinnedMemory::start_of(begin), begin);
  EXPECT_EQ(PinnedMemory::start_of(begin + 4095), begin);
  EXPECT_FALSE(PinnedMemory::holds(begin + 4096));
  EXPECT_FALSE(PinnedMemory::holds(begin - 1));
  // Nothing, and what is not page-locked, changes nothing.
  PinnedMemory::add(nullptr, 4096);
  PinnedMemory::add(this, 0);
  EXPECT_EQ(PinnedMemory::remove(this), 0u);
  EXPECT_EQ(PinnedMemory::remove(nullptr), 0u);
  EXPECT_EQ(PinnedMemory::remove(pinned_bytes.data()), 4096u);
  EXPECT_FALSE(PinnedMemory::holds(begin));
  EXPECT_EQ(PinnedMemory::remove(pinned_bytes.data()), 0u);
}

TEST_F(PinnedMemoryTest, WordsOfAKernelsParametersAreCompared) {
  EXPECT_TRUE(is_found(inside()));
  EXPECT_FALSE(is_found(2));
  EXPECT_FALSE(PinnedMemory::is_argument(driver_, nullptr, nullptr, nullptr));
  void* none[] = {nullptr, nullptr, nullptr};
  EXPECT_FALSE(PinnedMemory::is_argument(driver_, nullptr, none, nullptr));
}

TEST_F(PinnedMemoryTest, ALaunchMayNameAKernelOfALibrary) {
  is_named_by_library = true;
  EXPECT_TRUE(is_found(inside()));
  driver_.cuKernelGetParamInfo = nullptr;
  EXPECT_FALSE(is_found(inside())) << "the driver does not know it";
}

TEST_F(PinnedMemoryTest, AnOldDriverDoesNotTellOfParameters) {
  driver_.cuFuncGetParamInfo = nullptr;
  EXPECT_FALSE(is_found(inside()));
}

TEST_F(PinnedMemoryTest, WordsOfAPackedBufferAreCompared) {
  std::array<std::uintptr_t, 3> packed{1, inside(), 3};
  std::size_t bytes = sizeof packed;
  std::size_t first_word = sizeof(std::uintptr_t);
  const auto buffer = [&](std::size_t* size) {
    return std::vector<void*>{CU_LAUNCH_PARAM_BUFFER_POINTER, packed.data(),
                              CU_LAUNCH_PARAM_BUFFER_SIZE, size, CU_LAUNCH_PARAM_END};
  };
  EXPECT_TRUE(is_found_packed(buffer(&bytes)));
  EXPECT_FALSE(is_found_packed(buffer(&first_word))) << "what lies behind is not an argument";
  packed[1] = 2;
  EXPECT_FALSE(is_found_packed(buffer(&bytes)));
  EXPECT_FALSE(is_found_packed({CU_LAUNCH_PARAM_END}));
  EXPECT_FALSE(is_found_packed({CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END}));
}

}  // namespace
}  // namespace cupool::engine
