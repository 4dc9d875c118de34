// SPDX-License-Identifier: Apache-2.0
// Contract 3: the same codes as without us, by either interface and at inconvenient moments, the
// last-error state included.
#include "harness.h"

namespace preload {
namespace {

// Contract 3: the same codes as without us, the last-error state included.
TEST(Errors, OfTheRuntimeAreTheSame) {
  expect_same("probe_errors route=runtime");
}

TEST(Errors, OfTheDriverAreTheSame) {
  expect_same("probe_errors route=driver");
}

TEST(Errors, AreTheSameOnTheMallocBackend) {
  expect_same("probe_errors route=runtime", 0, 1, {{"CUPOOL_BACKEND", "malloc"}});
  expect_same("probe_errors route=driver", 0, 1, {{"CUPOOL_BACKEND", "malloc"}});
}

// Contract 3: CUDA permits neither in a host function, and the block stays live.
TEST(Errors, AllocationsAndFreesInHostFunctionsAreRefused) {
  for (const char* mode : {"auto", "ordered", "sync"}) {
    SCOPED_TRACE(mode);
    const PreloadedRun result =
        expect_same("probe_host_side case=callback", 0, 1,
                    {{"CUPOOL_FREE_MODE", mode}, {"CUPOOL_POOL_START", "first"}});
    EXPECT_TRUE(contains(result.process.out, "free=800")) << result.describe();
  }
}

// Contract 3: the moment when a block leaves is no exception.
TEST(Errors, ADoubleFreeIsRefusedWhileTheBlockGoesBack) {
  const PreloadedRun result =
      expect_same("probe_idle mode=twice", 0, 1, {{"CUPOOL_DECAY_MS", "1"}});
  EXPECT_GT(result.counter("returned_blocks_total"), 0u);
}

}  // namespace
}  // namespace preload
