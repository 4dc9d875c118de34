// SPDX-License-Identifier: Apache-2.0
// Contexts with a heap that gives nothing: each is found, and captures begin and end as counted.
#include <gtest/gtest.h>

#include "empty_heap.h"
#include "engine_context_registry_fixture.h"

namespace cupool::engine {
namespace {

class ContextShortHeapTest : public ContextRegistryTest {
 protected:
  template <typename Contexts>
  static std::size_t count(const Contexts& contexts) {
    std::size_t sum = 0;
    for (const Context* const each : contexts) sum += each != nullptr ? 1 : 0;
    return sum;
  }
};

TEST_F(ContextShortHeapTest, EachContextIsFound) {
  enter_new();
  enter_new();
  enter_new(kOtherDevice);
  const test::EmptyHeap none;
  EXPECT_EQ(count(registry_.all()), 3u);
  EXPECT_EQ(count(registry_.contexts_of(kDevice)), 2u);
  EXPECT_EQ(count(registry_.contexts_of(kOtherDevice)), 1u);
}

// One that is counted for good would keep every later fence from being recorded.
TEST_F(ContextShortHeapTest, ACaptureThatTheDriverRefusesIsNotCounted) {  // I3
  Context* const context = enter_new();
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const test::EmptyHeap none;
  EXPECT_EQ(streams_.begin_capture(*context, stream, [] { return CUDA_ERROR_UNKNOWN; }),
            CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(Serving::any_capture());
}

}  // namespace
}  // namespace cupool::engine
