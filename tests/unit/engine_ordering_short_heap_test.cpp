// SPDX-License-Identifier: Apache-2.0
// Ordering with a heap that gives nothing: an epoch that finds no place is closed once a wait has
// freed one, so what is freed becomes reusable all the same.
#include <gtest/gtest.h>

#include "empty_heap.h"
#include "engine_ordering_fixture.h"

namespace cupool::engine {
namespace {

class OrderingShortHeapTest : public OrderingTest {
 protected:
  // The fixture's own notes need no heap.
  OrderingShortHeapTest() {
    gpu.calls.reserve(100);
    driver_.cuCtxRecordEvent = [](CUcontext, CUevent) { return CUDA_SUCCESS; };
    driver_.cuEventQuery = [](CUevent) { return CUDA_ERROR_NOT_READY; };
    driver_.cuEventSynchronize = [](CUevent) { return CUDA_SUCCESS; };
  }
};

TEST_F(OrderingShortHeapTest, EachWaitMakesFreedBlocksReusable) {
  Ordering ordering(driver_, kContext, stats_);
  Block blocks[4];
  const test::EmptyHeap none;
  for (Block& block : blocks) {
    retire(ordering, block);
    ordering.close();
  }
  EXPECT_TRUE(ordering.wait_for_oldest().complete());
  EXPECT_TRUE(is_reclaimed(ordering, blocks[0]));
  EXPECT_FALSE(is_reclaimed(ordering, blocks[3]));
  EXPECT_TRUE(ordering.wait_for_oldest().complete());
  EXPECT_TRUE(is_reclaimed(ordering, blocks[3]));
  EXPECT_EQ(ordering.epochs().pending_bytes(), 0u);
}

TEST_F(OrderingShortHeapTest, SoDoesASynchronisationOfTheProgram) {
  Ordering ordering(driver_, kContext, stats_);
  const test::EmptyHeap none;
  for (int i = 0; i < 3; ++i) {
    Block block;
    retire(ordering, block);
    ordering.end_synchronize(ordering.begin_synchronize());
    EXPECT_EQ(reclaimed_count(ordering), 1u);
  }
}

TEST_F(OrderingShortHeapTest, TheEndOfAContextLeavesThePlaces) {
  Ordering ordering(driver_, kContext, stats_);
  const test::EmptyHeap none;
  Block lost;
  retire(ordering, lost);
  ordering.close();
  ordering.abandon();
  Block block;
  retire(ordering, block);
  EXPECT_TRUE(ordering.wait_for_oldest().complete());
  EXPECT_TRUE(is_reclaimed(ordering, block));
}

// Beyond the usual number there is no place to note which stream captures.
TEST_F(OrderingShortHeapTest, ACaptureThatCannotBeListedCountsUntilItsContextEnds) {  // I3
  Ordering ordering(driver_, kContext, stats_);
  const auto stream = [](std::uintptr_t number) { return reinterpret_cast<CUstream>(number << 8); };
  constexpr std::uintptr_t kCaptures = 20;
  const test::EmptyHeap none;
  for (std::uintptr_t number = 1; number <= kCaptures; ++number) {
    EXPECT_EQ(ordering.captures().begin(stream(number), [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  }
  EXPECT_TRUE(ordering.captures().has(stream(1)));
  EXPECT_FALSE(ordering.captures().has(stream(kCaptures)));
  for (std::uintptr_t number = 1; number <= kCaptures; ++number) {
    const auto end = [] { return CUDA_SUCCESS; };
    EXPECT_EQ(ordering.captures().end(stream(number), end, [] { return false; }), CUDA_SUCCESS);
  }
  EXPECT_TRUE(Serving::any_capture());
  ordering.abandon();
  EXPECT_FALSE(Serving::any_capture());
}

}  // namespace
}  // namespace cupool::engine
