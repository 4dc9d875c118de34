// SPDX-License-Identifier: Apache-2.0
// Contract 1: memory is usable at once from every stream and thread, and its owner's alone until it
// is freed.
#include "harness.h"

namespace preload {
namespace {

// Contract 1 and 2: one owner at a time, also across threads, streams and frees with work pending.
TEST(Ownership, ThreadsThatComeAndGoOwnTheirBlocks) {
  expect_counts(expect_same("probe_threads"));
}

TEST(Ownership, ThreadsAreRightInRealTime) {
  expect_counts(expect_same("probe_threads", 0, 1, {{"CUPOOL_SIM_MODE", "timed"}}));
}

}  // namespace
}  // namespace preload
