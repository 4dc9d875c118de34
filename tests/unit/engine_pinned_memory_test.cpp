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
  ~PinnedMemoryTest() override {
    for (const unsigned char& byte : pinned_bytes) forget(&byte);
  }
  // False: no range begins there.
  static bool forget(const void* start) {
    const std::uint64_t number = PinnedMemory::number_of(start);
    PinnedMemory::remove(start, number);
    return number != 0;
  }

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
  EXPECT_EQ(PinnedMemory::add(nullptr, 4096), 0u);
  EXPECT_EQ(PinnedMemory::add(this, 0), 0u);
  EXPECT_FALSE(forget(this));
  EXPECT_FALSE(forget(nullptr));
  EXPECT_TRUE(forget(pinned_bytes.data()));
  EXPECT_FALSE(PinnedMemory::holds(begin));
  EXPECT_FALSE(forget(pinned_bytes.data()));
}

// Memory that goes with its context is not taken back by a call.
TEST_F(PinnedMemoryTest, NoOlderRangeHidesAPartOfANewerOne) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pinned_bytes.data());
  const auto at = [&](std::size_t offset) { return &pinned_bytes[offset]; };
  PinnedMemory::add(at(0), 1024);
  PinnedMemory::add(at(2048), 64);
  PinnedMemory::add(at(3072), 64);
  PinnedMemory::add(at(512), 3072);  // over the end of the first, and all of the others
  EXPECT_FALSE(PinnedMemory::holds(begin + 3584));
  EXPECT_EQ(PinnedMemory::start_of(begin + 511), begin);
  for (const unsigned offset : {512, 1024, 2047, 2048, 2112, 3072, 3136, 3583}) {
    EXPECT_EQ(PinnedMemory::start_of(begin + offset), begin + 512) << offset;
  }
  EXPECT_FALSE(forget(at(2048)));
  EXPECT_FALSE(forget(at(3072)));
  // One inside of it takes its bytes, and the older one ends there.
  PinnedMemory::add(at(1024), 64);
  EXPECT_EQ(PinnedMemory::start_of(begin + 1023), begin + 512);
  EXPECT_EQ(PinnedMemory::start_of(begin + 1087), begin + 1024);
  EXPECT_FALSE(PinnedMemory::holds(begin + 1088));
  EXPECT_TRUE(forget(at(0)));
  EXPECT_FALSE(PinnedMemory::holds(begin + 511));
  EXPECT_TRUE(PinnedMemory::holds(begin + 512));
}

// The driver may have handed the address out again by the time that the call of its last owner
// returns.
TEST_F(PinnedMemoryTest, ACallThatGivesMemoryBackTakesNothingOfTheNextOwner) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pinned_bytes.data());
  const std::uint64_t number = PinnedMemory::number_of(pinned_bytes.data());
  EXPECT_NE(number, 0u);
  EXPECT_EQ(PinnedMemory::number_of(&pinned_bytes[1]), 0u);
  PinnedMemory::remove(pinned_bytes.data(), 0);
  EXPECT_TRUE(PinnedMemory::holds(begin));
  PinnedMemory::add(pinned_bytes.data(), 64);
  PinnedMemory::remove(pinned_bytes.data(), number);
  EXPECT_TRUE(PinnedMemory::holds(begin)) << "it is the next owner's";
  PinnedMemory::remove(pinned_bytes.data(), PinnedMemory::number_of(pinned_bytes.data()));
  EXPECT_FALSE(PinnedMemory::holds(begin));
  EXPECT_EQ(PinnedMemory::number_of(pinned_bytes.data()), 0u);
}

TEST_F(PinnedMemoryTest, WordsOfAKernelsParametersAreCompared) {
  EXPECT_TRUE(is_found(inside()));
  EXPECT_FALSE(is_found(2));
  EXPECT_FALSE(PinnedMemory::is_argument(driver_, nullptr, nullptr, nullptr));
  void* none[] = {nullptr, nullptr, nullptr};
  EXPECT_FALSE(PinnedMemory::is_argument(driver_, nullptr, none, nullptr));
}

TEST_F(PinnedMemoryTest, AKernelMayGoBackwardsFromTheEnd) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pinned_bytes.data());
  const std::uintptr_t end = begin + pinned_bytes.size();
  EXPECT_TRUE(is_found(end));
  EXPECT_FALSE(PinnedMemory::holds(end));
  EXPECT_FALSE(is_found(end + 1));
  EXPECT_FALSE(is_found(begin - 1));
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
  EXPECT_TRUE(is_found_packed({CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER,
                               packed.data(), CU_LAUNCH_PARAM_END}))
      << "in either order";
  EXPECT_FALSE(is_found_packed(buffer(&first_word))) << "what lies behind is not an argument";
  packed[1] = 2;
  EXPECT_FALSE(is_found_packed(buffer(&bytes)));
  EXPECT_FALSE(is_found_packed({CU_LAUNCH_PARAM_END}));
  EXPECT_FALSE(is_found_packed({CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END}));
}

// Of a pool, mapped, or another process's: every launch may touch it.
TEST_F(PinnedMemoryTest, MemoryOutsideTheTableMayBeAnyArgument) {
  EXPECT_FALSE(is_found(2));
  EXPECT_FALSE(PinnedMemory::may_hold(2));
  EXPECT_TRUE(forget(pinned_bytes.data()));
  EXPECT_FALSE(PinnedMemory::any());
  EXPECT_TRUE(PinnedMemory::is_elsewhere());
  EXPECT_FALSE(PinnedMemory::is_elsewhere()) << "known already";
  EXPECT_TRUE(PinnedMemory::any());
  EXPECT_TRUE(PinnedMemory::may_hold(2));
  EXPECT_TRUE(is_found(2));
  EXPECT_TRUE(PinnedMemory::is_argument(driver_, nullptr, nullptr, nullptr));
  PinnedMemory::reset();
  EXPECT_FALSE(PinnedMemory::any());
}

}  // namespace
}  // namespace cupool::engine
