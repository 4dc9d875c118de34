// SPDX-License-Identifier: Apache-2.0
// Fault injection and call counts, which other tests rely on.
#include "fixture.h"

namespace cupool::sim::test {

using Faults = Sim;

TEST_F(Faults, TheNthCallFailsBeforeItActs) {
  CUdeviceptr p = 0;
  const size_t before = free_bytes();
  cupoolSimFail("cuMemAlloc_v2:2=2");
  EXPECT_EQ(cuMemAlloc(&p, 4 << 20), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&p, 4 << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&p, 4 << 20), CUDA_SUCCESS);
  EXPECT_EQ(before - free_bytes(), 8u << 20);
}

TEST_F(Faults, EveryCallOrFromTheNthOn) {
  CUdeviceptr p = 0;
  cupoolSimFail("cuMemAlloc_v2:*=999,cuStreamCreate:2+=1");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_UNKNOWN);
  CUstream s = nullptr;
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_VALUE);
  cupoolSimFail("");
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_SUCCESS);
}

TEST_F(Faults, ABaseNameMeansAllItsSymbols) {
  cupoolSimFail("cuStreamQuery:2=700");
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS);
  void* twin = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuStreamQuery", &twin, 13000, 2, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(reinterpret_cast<decltype(&cuStreamQuery)>(twin)(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(Faults, AnInjectedErrorIsNotSticky) {
  CUdeviceptr p = 0;
  cupoolSimFail("cuMemAlloc:1=719");
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_SUCCESS);
}

TEST_F(Faults, AnInjectedErrorStaysWhereTheRuleSaysSo) {
  CUdeviceptr p = 0;
  cupoolSimFail("cuMemAlloc:1=719!");
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(Faults, AFaultMayFollowAnother) {
  CUdeviceptr p = 0;
  CUstream s = nullptr;
  cupoolSimFail("cuMemAlloc_v2:2=2,>cuStreamCreate:2=1,>cuMemAlloc_v2:1=999");
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_SUCCESS);
  cupoolSimFail("cuMemAlloc_v2:1=2,>cuMemAlloc_v2:1=999");
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_SUCCESS);
}

TEST_F(Faults, CallsAreCountedBySymbol) {
  const unsigned long long before = cupoolSimCalls("cuMemAlloc_v2");
  alloc(4);
  alloc(4);
  EXPECT_EQ(cupoolSimCalls("cuMemAlloc_v2"), before + 2);
  EXPECT_EQ(cupoolSimCalls("cuMemAlloc"), 0u);
  EXPECT_EQ(cupoolSimCalls("noSuchFunction"), 0u);
}

// A forked child of an initialised process has no driver, so the death happens in a new process.
class FaultsDeathTest : public Sim {
 protected:
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    Sim::SetUp();
  }
};

TEST_F(FaultsDeathTest, NonsenseStopsTheProcess) {
  EXPECT_DEATH(cupoolSimFail("cuMemAlloc"), "");
  EXPECT_DEATH(cupoolSimFail("cuNoSuchFunction:1=2"), "");
  EXPECT_DEATH(cupoolSimFail(">cuMemAlloc:1=2"), "");
}

}  // namespace cupool::sim::test
