// SPDX-License-Identifier: Apache-2.0
// Contract 12: the program's own stream-ordered, managed and host memory and its arrays are the
// driver's, and only counted.
#include "harness.h"

namespace preload {
namespace {

TEST(OtherMemory, IsTheDriversAndCounted) {
  constexpr uint64_t kRounds = 10;
  for (const char* backend : {"pool", "malloc"}) {
    SCOPED_TRACE(backend);
    const PreloadedRun run = expect_same("probe_other_memory", 0, 1, {{"CUPOOL_BACKEND", backend}});
    EXPECT_EQ(run.counter("own_async_malloc_calls_total"), 2 * kRounds);
    EXPECT_EQ(run.counter("own_async_free_calls_total"), 2 * kRounds);
    EXPECT_EQ(run.counter("managed_malloc_calls_total"), kRounds);
    EXPECT_EQ(run.counter("array_calls_total"), kRounds);
    EXPECT_EQ(run.counter("host_malloc_calls_total"), kRounds);
    EXPECT_EQ(run.counter("malloc_calls_total"), 8 * (kRounds + 1));
    EXPECT_EQ(run.counter("free_calls_total"), 8 * (kRounds + 1) + kRounds)
        << "managed by cudaFree";
    for (const nlohmann::json& report : run.reports) expect_identity(report);
  }
}

}  // namespace
}  // namespace preload
