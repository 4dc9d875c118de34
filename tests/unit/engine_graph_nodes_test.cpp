// SPDX-License-Identifier: Apache-2.0
// Which context the driver is told for graph nodes that fill memory (contract 6).
#include "engine/serve/graph_nodes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

class GraphNodesTest : public PoolEngineTest {
 protected:
  CUcontext context_of(CUdeviceptr address, CUcontext named = nullptr) {
    CUDA_MEMSET_NODE_PARAMS parameters{};
    parameters.dst = address;
    return context_of_fill(&allocator_->queries(), named, &parameters);
  }
  CUcontext const named_ = reinterpret_cast<CUcontext>(0x100);
};

TEST_F(GraphNodesTest, AFillOfPoolMemoryNeedsTheContextOfItsBlock) {
  const CUdeviceptr address = allocate(4096);
  EXPECT_EQ(context_of(address), context_->handle());
  EXPECT_EQ(context_of(address + 100), context_->handle());
  EXPECT_EQ(context_of(kForeign), nullptr) << "the driver looks for itself";
  free(address);
  EXPECT_EQ(context_of(address), nullptr);
  start({{"CUPOOL_BACKEND", "malloc"}});
  EXPECT_EQ(context_of(allocate(4096)), nullptr) << "the driver knows whose it is";
}

TEST_F(GraphNodesTest, WhatTheProgramNamesStays) {
  const CUdeviceptr address = allocate(4096);
  EXPECT_EQ(context_of(address, named_), named_);
  EXPECT_EQ(context_of_fill(&allocator_->queries(), nullptr, nullptr), nullptr);
  CUDA_MEMSET_NODE_PARAMS parameters{};
  parameters.dst = address;
  EXPECT_EQ(context_of_fill(nullptr, nullptr, &parameters), nullptr) << "no engine";
}

#if CUDA_VERSION >= 12020
TEST_F(GraphNodesTest, ACopyOfTheParametersGetsTheContext) {
  CUgraphNodeParams given{};
  given.type = CU_GRAPH_NODE_TYPE_MEMSET;
  given.memset.dst = allocate(4096);
  given.memset.width = 17;
  CompletedNode node(&allocator_->queries(), &given);
  ASSERT_NE(node.parameters(), &given);
  EXPECT_EQ(given.memset.ctx, nullptr) << "the program's own stay as they are";
  CUgraphNodeParams completed{};
  std::memcpy(&completed, node.parameters(), sizeof completed);
  EXPECT_EQ(completed.memset.ctx, context_->handle());
  completed.memset.ctx = nullptr;
  EXPECT_EQ(std::memcmp(&completed, &given, sizeof given), 0) << "all else is the same";
}

TEST_F(GraphNodesTest, ParametersThatNeedNoContextAreHandedOn) {
  CUgraphNodeParams given{};
  const auto is_handed_on = [&](PointerQueries* queries) {
    return CompletedNode(queries, &given).parameters() == &given;
  };
  PointerQueries* const queries = &allocator_->queries();
  given.type = CU_GRAPH_NODE_TYPE_MEMSET;
  given.memset.dst = allocate(4096);
  EXPECT_FALSE(is_handed_on(queries));
  EXPECT_TRUE(is_handed_on(nullptr)) << "no engine";
  given.type = CU_GRAPH_NODE_TYPE_KERNEL;
  EXPECT_TRUE(is_handed_on(queries));
  given.type = CU_GRAPH_NODE_TYPE_MEMSET;
  given.memset.ctx = named_;
  EXPECT_TRUE(is_handed_on(queries));
  given.memset.ctx = nullptr;
  given.memset.dst = kForeign;
  EXPECT_TRUE(is_handed_on(queries));
  EXPECT_EQ(CompletedNode(queries, nullptr).parameters(), nullptr);
}
#endif

}  // namespace
}  // namespace cupool::engine
