// SPDX-License-Identifier: Apache-2.0
// The records of stream-ordered blocks by themselves: what stays known of memory that the driver
// does not free, or whose context ends during a call (contract 12).
#include "engine/serve/async_blocks.h"

#include "engine_device_fixture.h"

namespace cupool::engine {
namespace {

class AsyncBlocksTest : public DeviceTest {
 protected:
  static constexpr CUdeviceptr kAddress = 0x7000000000;
  static constexpr std::uint64_t kCapacity = 4096;

  AsyncBlocksTest() {
    make();
    blocks_.adopt(*context_, context_->incarnation(), kAddress, kCapacity, 1000);
  }

  std::uint64_t unused() {
    return static_cast<std::uint64_t>(context_->stats().unused_stream_ordered.load());
  }

  AsyncBlocks blocks_;
};

TEST_F(AsyncBlocksTest, WhatTheDriverDoesNotFreeStaysKnown) {
  EXPECT_EQ(blocks_.free_by_driver(kAddress, [] { return CUDA_ERROR_UNKNOWN; }),
            CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(blocks_.bytes(), kCapacity);
  ASSERT_NE(blocks_.find(kAddress), nullptr);
  EXPECT_EQ(blocks_.find(kAddress)->state.load(), BlockState::live);
  EXPECT_EQ(blocks_.free_by_driver(kAddress, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(blocks_.bytes(), 0u);
  EXPECT_EQ(blocks_.free_by_driver(kAddress, [] { return CUDA_ERROR_INVALID_VALUE; }),
            CUDA_ERROR_INVALID_VALUE)
      << "the driver answers";
}

// The same handle may name a new context then, in which the memory is not to be handed out.
TEST_F(AsyncBlocksTest, MemoryWhoseContextEndsDuringItsFreeIsNotKnownAnyMore) {  // I8
  EXPECT_EQ(blocks_.free_by_driver(kAddress,
                                   [&] {
                                     context_->set_gone();
                                     return CUDA_ERROR_CONTEXT_IS_DESTROYED;
                                   }),
            CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(blocks_.find(kAddress), nullptr);
  EXPECT_EQ(blocks_.bytes(), 0u);
}

TEST_F(AsyncBlocksTest, MemoryWhoseContextEndsDuringItsAllocationIsTheDrivers) {  // I8
  constexpr CUdeviceptr kOther = kAddress + kCapacity;
  const std::uint64_t life = context_->incarnation();
  context_->set_gone();
  blocks_.adopt(*context_, life, kOther, kCapacity, kCapacity);
  EXPECT_EQ(blocks_.find(kOther), nullptr);
  EXPECT_EQ(blocks_.bytes(), kCapacity);
  blocks_.context_gone(*context_, true);
  EXPECT_EQ(blocks_.bytes(), 0u);
}

// Bytes beyond the request, and freed memory.
TEST_F(AsyncBlocksTest, TellsWhatTheProgramDoesNotUse) {  // contract 12
  EXPECT_TRUE(blocks_.find(kAddress, kAddress + 999).served());
  EXPECT_TRUE(blocks_.find(kAddress, kAddress + 1000).nobodys);
  EXPECT_EQ(unused(), kCapacity - 1024) << "as the driver rounds it";
  EXPECT_EQ(stats::device(kOrdinal + 1).unused_stream_ordered, 0);
  Block* const block = blocks_.find(kAddress);
  ASSERT_TRUE(AsyncBlocks::claim(*block, block->state.word()));
  EXPECT_EQ(unused(), kCapacity);
  EXPECT_TRUE(blocks_.find(kAddress, kAddress).nobodys);
  EXPECT_EQ(blocks_.free_by_driver(kAddress, [] { return CUDA_SUCCESS; }), CUDA_ERROR_INVALID_VALUE)
      << "it is freed already";
  blocks_.drop_lost(*block);
  EXPECT_EQ(blocks_.find(kAddress), nullptr);
}

// Whatever happens to a block, by the driver or with its context.
TEST_F(AsyncBlocksTest, NothingIsUnusedOnceNoBlockIsKnown) {  // contract 12
  EXPECT_EQ(unused(), kCapacity - 1024);
  EXPECT_EQ(blocks_.free_by_driver(kAddress, [] { return CUDA_ERROR_UNKNOWN; }),
            CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(unused(), kCapacity - 1024) << "it is the program's as before";
  EXPECT_EQ(blocks_.free_by_driver(kAddress, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(unused(), 0u);
  blocks_.adopt(*context_, context_->incarnation() + 1, kAddress, kCapacity, 1000);
  EXPECT_EQ(unused(), 0u) << "of an ended context";
  blocks_.adopt(*context_, context_->incarnation(), kAddress, kCapacity, 1000);
  blocks_.adopt(*context_, context_->incarnation(), kAddress + kCapacity, kCapacity, 2000);
  Block* const idle = blocks_.find(kAddress);
  ASSERT_TRUE(AsyncBlocks::claim(*idle, idle->state.word()));
  blocks_.context_gone(*context_, true);
  EXPECT_EQ(unused(), 0u);
  delete_block(idle);  // who has claimed it has it
}

}  // namespace
}  // namespace cupool::engine
