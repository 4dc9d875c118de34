// SPDX-License-Identifier: Apache-2.0
// cudaFreeAsync of memory of cudaMalloc (contracts 2 and 12): its stream may be another context's,
// and the block may be one of the driver's own from before the pools.
#include "harness.h"

namespace preload {
namespace {

// The judge ends a program whose new owner's work is not ordered after the old one's.
TEST(StreamFree, IsBehindTheWorkOfAnotherContextsStream) {
  for (const char* devices : {"1", "2"}) {
    for (const char* captures : {"0", "1"}) {
      SCOPED_TRACE(std::string(devices) + " device(s), captures: " + captures);
      expect_same(std::string("probe_stream_free devices=") + devices + " captures=" + captures, 0,
                  1, {{"CUPOOL_SIM_DEVICES", devices}, {"CUPOOL_POOL_START", "first"}});
    }
  }
}

// Where the driver does not order the two streams, the host waits; where that fails as well, the
// block is not handed out again.
TEST(StreamFree, IsNeverHandedOnUnordered) {
  for (const char* refused : {"cuStreamWaitEvent:*=1", "cuEventRecord:*=1", "cuStreamGetCtx:*=1"}) {
    SCOPED_TRACE(refused);
    expect_same(std::string("probe_stream_free fail=") + refused, 0, 1,
                {{"CUPOOL_POOL_START", "first"}});
  }
  const PreloadedRun run =
      run_preloaded("probe_stream_free fail=cuStreamWaitEvent:*=1,cuStreamSynchronize:*=1",
                    {{"CUPOOL_POOL_START", "first"}});
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_TRUE(contains(run.process.err, "the block is set aside")) << run.describe();
}

void expect_all_freed(const PreloadedRun& run) {
  expect_counts(run);
  EXPECT_EQ(run.counter("own_async_free_calls_total"), 0u) << run.describe();
  for (const nlohmann::json& report : run.reports) {
    for (const nlohmann::json& device : report.at("devices")) {
      EXPECT_EQ(device.at("gauges").at("passthrough_bytes").at("current"), 0);
      EXPECT_EQ(device.at("gauges").at("leaked_blocks").at("current"), 0);
    }
  }
}

TEST(StreamFree, OfWhatPassedThroughIsCounted) {
  for (const char* start : {"background", "first"}) {
    SCOPED_TRACE(start);
    expect_all_freed(
        expect_same("probe_stream_free mode=count", 0, 1, {{"CUPOOL_POOL_START", start}}));
  }
}

TEST(StreamFree, IsCountedWhereCupoolOnlyObserves) {
  expect_all_freed(expect_same("probe_stream_free mode=count", 0, 1, {{"CUPOOL_MODE", "observe"}}));
}

}  // namespace
}  // namespace preload
