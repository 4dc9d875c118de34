// SPDX-License-Identifier: Apache-2.0
// Memory that others than the program's streams know (contract 8): the next owner meets nothing of
// it.
#include "harness.h"

namespace preload {
namespace {

const Environment kPoolsAtOnce = {{"CUPOOL_POOL_START", "first"}};

TEST(Outside, TheAttributeGoesWithTheBlock) {
  for (const char* backend : {"pool", "malloc"}) {
    SCOPED_TRACE(backend);
    expect_same("probe_outside mode=attribute", 0, 1,
                with(kPoolsAtOnce, {{"CUPOOL_BACKEND", backend}}));
  }
}

TEST(Outside, MemoryBehindADescriptorIsKeptAside) {
  for (const char* pool : {"private", "default"}) {
    SCOPED_TRACE(pool);
    const PreloadedRun run =
        run_preloaded("probe_outside mode=descriptor", with(kPoolsAtOnce, {{"CUPOOL_POOL", pool}}));
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    EXPECT_EQ(run.process.out, "once more: 1\nhanded out again 0, the rest: 0\n") << run.describe();
    EXPECT_TRUE(contains(run.process.err, "The block is set aside")) << run.describe();
    for (const nlohmann::json& report : run.reports) {
      expect_identity(report);
      EXPECT_GE(report.at("devices").at(0).at("gauges").at("retired_bytes").at("current"),
                3 * ((8 << 20) + (1 << 20) + 4096));
    }
  }
}

}  // namespace
}  // namespace preload
