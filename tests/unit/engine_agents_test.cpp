// SPDX-License-Identifier: Apache-2.0
// Libraries that let other agents into device memory are told by their names (docs/design.md).
#include "engine/context/rdma_libraries.h"

#include <gtest/gtest.h>

namespace cupool::engine {
namespace {

TEST(Agents, AreKnownByTheirFileName) {
  EXPECT_TRUE(is_rdma_library("/usr/lib/x86_64-linux-gnu/libmpi.so.40"));
  EXPECT_TRUE(is_rdma_library("libucp.so.0"));
  EXPECT_TRUE(is_rdma_library("/opt/amazon/efa/lib/libfabric.so.1"));
  EXPECT_TRUE(is_rdma_library("/opt/cray/libmpi_gnu_123.so.12"));
}

TEST(Agents, OthersAreNotTakenForThem) {
  EXPECT_FALSE(is_rdma_library(""));
  EXPECT_FALSE(is_rdma_library("/usr/lib/libmpifr.so.4"));
  EXPECT_FALSE(is_rdma_library("/home/libmpi.so/program"));
  EXPECT_FALSE(is_rdma_library("/usr/lib/libcufile.so.0"));
  EXPECT_FALSE(is_rdma_library("libc.so.6"));
}

TEST(Agents, NoneIsLoadedHere) {
  EXPECT_EQ(loaded_rdma_library(), nullptr);
}

}  // namespace
}  // namespace cupool::engine
