// SPDX-License-Identifier: Apache-2.0
// How the driver's functions are found.
// Rules: CUDA Driver API, cuGetProcAddress; the answers were compared with driver 580, name by
// name.
#include "fixture.h"

#include <dlfcn.h>

#include <set>

namespace cupool::sim::test {

struct Answer {
  CUresult result;
  void* function;
  CUdriverProcAddressQueryResult status;
};

const auto kUntouched = static_cast<CUdriverProcAddressQueryResult>(3);  // means nothing
int marker;

Answer ask(const char* name, int version, cuuint64_t flags = 0) {
  Answer a{CUDA_SUCCESS, &marker, kUntouched};
  a.result = cuGetProcAddress(name, &a.function, version, flags, &a.status);
  return a;
}

void* symbol(const char* name) {
  return dlsym(RTLD_DEFAULT, name);
}

TEST(Symbols, TheVersionChoosesTheFunction) {
  EXPECT_EQ(ask("cuMemAlloc", 3020).function, symbol("cuMemAlloc_v2"));
  EXPECT_EQ(ask("cuMemAlloc", 13000).function, symbol("cuMemAlloc_v2"));
  EXPECT_EQ(ask("cuMemAlloc", 2000).function, symbol("cuMemAlloc"));
  EXPECT_EQ(ask("cuCtxSynchronize", 2000).function, symbol("cuCtxSynchronize"));
  EXPECT_EQ(ask("cuCtxSynchronize", 13000).function, symbol("cuCtxSynchronize_v2"));
  EXPECT_EQ(ask("cuGetProcAddress", 11030).function, symbol("cuGetProcAddress"));
  EXPECT_EQ(ask("cuGetProcAddress", 12000).function, symbol("cuGetProcAddress_v2"));
  EXPECT_EQ(ask("cuDevicePrimaryCtxReset", 7000).function, symbol("cuDevicePrimaryCtxReset"));
  EXPECT_EQ(ask("cuGraphInstantiate", 12000).function, symbol("cuGraphInstantiate_v2"));
}

TEST(Symbols, TheFlagChoosesTheTwin) {
  constexpr cuuint64_t kTwin = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(ask("cuMemAllocAsync", 11020, 0).function, symbol("cuMemAllocAsync"));
  EXPECT_EQ(ask("cuMemAllocAsync", 11020, 1).function, symbol("cuMemAllocAsync"));
  EXPECT_EQ(ask("cuMemAllocAsync", 11020, kTwin).function, symbol("cuMemAllocAsync_ptsz"));
  EXPECT_EQ(ask("cuMemAllocAsync", 11020, 3).function, symbol("cuMemAllocAsync_ptsz"));
  EXPECT_EQ(ask("cuMemFree", 13000, kTwin).function, symbol("cuMemFree_v2")) << "it has none";
  const Answer early = ask("cuStreamQuery", 6000, kTwin);
  EXPECT_EQ(early.function, nullptr) << "its twin came with 7.0";
  EXPECT_EQ(early.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST(Symbols, WhatIsNotThere) {
  for (const char* name : {"", "cuNoSuchFunction", "cuMemAlloc_v2", "cuMemAllocAsync_ptsz"}) {
    const Answer a = ask(name, 13000);
    EXPECT_EQ(a.result, CUDA_SUCCESS) << name;
    EXPECT_EQ(a.function, nullptr) << name;
    EXPECT_EQ(a.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) << name;
  }
  const Answer early = ask("cuMemAllocAsync", 11010);
  EXPECT_EQ(early.result, CUDA_SUCCESS);
  EXPECT_EQ(early.function, nullptr);
  EXPECT_EQ(early.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST(Symbols, WhatIsRefused) {
  for (const Answer& a : {ask("cuMemAlloc", 13010), ask("cuMemAlloc", 13000, 4)}) {
    EXPECT_EQ(a.result, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(a.function, &marker) << "nothing is written";
    EXPECT_EQ(a.status, kUntouched);
  }
}

TEST(Symbols, TheStatusMayBeNull) {
  void* function = &marker;
  EXPECT_EQ(cuGetProcAddress("", &function, 13000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
}

TEST(Symbols, TheFirstVersionHasAnErrorInstead) {
  using First = CUresult (*)(const char*, void**, int, cuuint64_t);
  const auto find = reinterpret_cast<First>(symbol("cuGetProcAddress"));
  void* function = &marker;
  EXPECT_EQ(find("cuNoSuchFunction", &function, 13000, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(function, &marker);
  EXPECT_EQ(find("cuMemAlloc", &function, 13000, 0), CUDA_SUCCESS);
  EXPECT_EQ(function, symbol("cuMemAlloc_v2"));
}

// Every function of the list that this driver is new enough for is exported, and found at its
// version as itself.
TEST(Symbols, TheListIsTheExports) {
  struct Row {
    const char* base;
    const char* symbol;
    int since;
    int per_thread;
  };
  const Row rows[] = {
#define SIM_FUNCTION(base, symbol, since, per_thread) {#base, #symbol, since, per_thread},
#include "driver/functions.def"
#include "driver/unsupported.def"
#undef SIM_FUNCTION
  };
  std::set<std::string> seen;
  for (const Row& row : rows) {
    EXPECT_TRUE(seen.insert(row.symbol).second) << row.symbol << " is listed twice";
    if (row.since > 13000) {
      EXPECT_EQ(symbol(row.symbol), nullptr) << row.symbol;
      continue;
    }
    void* const exported = symbol(row.symbol);
    ASSERT_NE(exported, nullptr) << row.symbol;
    EXPECT_EQ(ask(row.base, row.since, row.per_thread != 0 ? 2 : 0).function, exported)
        << row.symbol;
  }
  EXPECT_GT(seen.size(), 600u);
}

TEST(Symbols, ExportTablesAreNotThere) {
  const void* table = &marker;
  CUuuid id{};
  EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
}

TEST(Symbols, WhatIsNotModelledSaysSo) {
  CUtexref texture = nullptr;
  EXPECT_EQ(cuTexRefCreate(&texture), CUDA_ERROR_NOT_SUPPORTED);
}

TEST(Symbols, ErrorsHaveNames) {
  const char* text = nullptr;
  ASSERT_EQ(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  int version = 0;
  EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, 13000);
}

}  // namespace cupool::sim::test
