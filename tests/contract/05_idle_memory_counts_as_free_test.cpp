// SPDX-License-Identifier: Apache-2.0
// Contract 5: what the driver says of free memory, as without us.
#include "harness.h"

namespace preload {
namespace {

TEST(FreeMemory, IsAsWithoutUs) {
  for (const char* mode : {"auto", "sync"}) {
    expect_same("probe_free_memory", 0, 1, {{"CUPOOL_FREE_MODE", mode}});
    expect_same("probe_free_memory tolerance_mib=2", 0, 1,
                {{"CUPOOL_BACKEND", "malloc"}, {"CUPOOL_FREE_MODE", mode}});
  }
  expect_same("probe_free_memory", 0, 1, {{"CUPOOL_SIM_MODE", "timed"}});
}

}  // namespace
}  // namespace preload
