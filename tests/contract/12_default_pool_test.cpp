// SPDX-License-Identifier: Apache-2.0
// Contract 12: what the program reads of the device's default pool is as without us, though the
// pool keeps idle memory; with contracts 4 and 5 for that memory.
#include "harness.h"

namespace preload {
namespace {

// Contract 12. While decay looks at the pool all the time, and while it never does.
TEST(DefaultPool, ReadsAsWithoutUs) {
  for (const char* decay : {"20", "0"}) {
    expect_same("probe_default_pool mode=reads", 0, 1,
                {{"CUPOOL_DECAY_MS", decay}, {"CUPOOL_SIM_MODE", "early"}});
  }
}

// Contract 4. The driver itself takes nothing back (CUPOOL_SIM_RECLAIM).
TEST(DefaultPool, HasItsIdleMemoryForEveryAllocator) {
  for (const char* backend : {"pool", "malloc"}) {
    for (const char* mode : {"late", "early", "timed"}) {
      expect_same("probe_default_pool mode=oom", 0, 1,
                  {{"CUPOOL_DECAY_MS", "0"},
                   {"CUPOOL_SIM_MEMORY", "400M"},
                   {"CUPOOL_SIM_MODE", mode},
                   {"CUPOOL_BACKEND", backend}});
    }
  }
}

// Contract 4. As the driver refuses it, and as soon.
TEST(DefaultPool, DoesNotWaitForWhatTheGpuStillUses) {
  expect_same(
      "probe_default_pool mode=pending", 0, 1,
      {{"CUPOOL_DECAY_MS", "0"}, {"CUPOOL_SIM_MEMORY", "400M"}, {"CUPOOL_SIM_MODE", "timed"}});
}

// Contract 5. What no trim gives back is not free.
TEST(DefaultPool, CountsNoFragmentsAsFree) {
  for (const char* mode : {"late", "early", "timed"}) {
    expect_same("probe_default_pool mode=fragments", 0, 1,
                {{"CUPOOL_DECAY_MS", "0"}, {"CUPOOL_SIM_MODE", mode}});
  }
}

// Contract 5.
TEST(DefaultPool, CountsItsIdleMemoryAsFree) {
  expect_same("probe_default_pool mode=info", 0, 1, {{"CUPOOL_DECAY_MS", "0"}});
  expect_same("probe_default_pool mode=info", 0, 1,
              {{"CUPOOL_DECAY_MS", "0"}, {"CUPOOL_BACKEND", "malloc"}});
}

}  // namespace
}  // namespace preload
