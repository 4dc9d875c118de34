// Libraries that let other agents into device memory are told by their names (docs/design.md).
#include "core/agents.h"

#include <gtest/gtest.h>

namespace cupool::core {
namespace {

TEST(Agents, AreKnownByTheirFileName) {
  EXPECT_TRUE(is_agent_library("/usr/lib/x86_64-linux-gnu/libmpi.so.40"));
  EXPECT_TRUE(is_agent_library("libucp.so.0"));
  EXPECT_TRUE(is_agent_library("/opt/amazon/efa/lib/libfabric.so.1"));
  EXPECT_TRUE(is_agent_library("/opt/cray/libmpi_gnu_123.so.12"));
}

TEST(Agents, OthersAreNotTakenForThem) {
  EXPECT_FALSE(is_agent_library(""));
  EXPECT_FALSE(is_agent_library("/usr/lib/libmpifr.so.4"));
  EXPECT_FALSE(is_agent_library("/home/libmpi.so/program"));
  EXPECT_FALSE(is_agent_library("/usr/lib/libcufile.so.0"));
  EXPECT_FALSE(is_agent_library("libc.so.6"));
}

TEST(Agents, NoneIsLoadedHere) {
  EXPECT_EQ(loaded_agent_library(), nullptr);
}

}  // namespace
}  // namespace cupool::core
