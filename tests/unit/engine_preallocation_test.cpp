// SPDX-License-Identifier: Apache-2.0
// Memory reserved in advance, in slices: how the reservation ends, and what the driver's refusals
// make of it.
#include "engine/backend/preallocation.h"

#include "engine/backend/pool_backend.h"
#include "engine_device_fixture.h"

namespace cupool::engine {
namespace {

CUresult reservation_result = CUDA_SUCCESS;
Preallocation* ends_meanwhile = nullptr;  // another thread needs memory during the driver's call
Context* its_context = nullptr;

class PreallocationTest : public DeviceTest {
 protected:
  PreallocationTest() {
    driver_.cuMemAllocFromPoolAsync = [](CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                         CUstream stream) {
      if (reservation_result != CUDA_SUCCESS) return reservation_result;
      if (ends_meanwhile != nullptr) ends_meanwhile->end(*its_context);
      return test::fake::allocate_from_pool(address, bytes, pool, stream);
    };
  }
  ~PreallocationTest() override {
    reservation_result = CUDA_SUCCESS;
    ends_meanwhile = nullptr;
  }
  Preallocation& left_for_later(std::initializer_list<const char*> options) {
    device_ = &make(options);
    Preallocation& made = device_->pools()->preallocation();
    EXPECT_TRUE(made.begin());
    EXPECT_FALSE(made.begin());
    made.leave_for_later();
    return made;
  }
  Preallocation& left_for_later() {
    return left_for_later({"CUPOOL_BACKEND=pool", "CUPOOL_PREALLOC=128M"});
  }
  static std::uint64_t used() {
    std::uint64_t sum = 0;
    for (const auto& each : test::pools->all()) sum += each.used;
    return sum;
  }

  Device* device_ = nullptr;
};

TEST_F(PreallocationTest, SlicesStayAllocatedUntilTheLastOne) {
  Preallocation& memory = left_for_later();
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::goes_on);
  EXPECT_EQ(memory.bytes(), 64 * kMiB);
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::goes_on);
  EXPECT_EQ(memory.bytes(), 128 * kMiB);
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::ended);
  EXPECT_EQ(memory.bytes(), 0u);
  EXPECT_EQ(used(), 0u);
  EXPECT_GE(test::pools->reserved(), 128 * kMiB);
  EXPECT_FALSE(memory.is_left());
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::ended);
}

TEST_F(PreallocationTest, MemoryThatIsNeededEndsIt) {
  Preallocation& memory = left_for_later();
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::goes_on);
  memory.end(*context_);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::ended);
  EXPECT_EQ(used(), 0u);
}

TEST_F(PreallocationTest, ASliceThatComesBehindTheEndGoesToThePool) {
  Preallocation& memory = left_for_later();
  ends_meanwhile = &memory;
  its_context = context_;
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::ended);
  EXPECT_EQ(memory.bytes(), 0u);
  EXPECT_EQ(used(), 0u);
}

// After a reset the primary context is current, and cannot be used until the program's next call.
TEST_F(PreallocationTest, WaitsForAContextThatCanBeUsed) {
  Preallocation& memory = left_for_later();
  for (const CUresult result : {CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
    reservation_result = result;
    EXPECT_EQ(memory.reserve_some(*context_), Preallocation::waits);
    EXPECT_TRUE(memory.is_left());
  }
  reservation_result = CUDA_SUCCESS;
  EXPECT_EQ(memory.reserve_some(*context_), Preallocation::goes_on);
}

// A warning is due unless the program has the memory itself.
TEST_F(PreallocationTest, ARefusalEndsItAndWhatThereIsGoesToThePool) {
  for (const bool has_memory : {true, false}) {
    for (const CUresult result : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
      reservation_result = CUDA_SUCCESS;
      Preallocation& memory = left_for_later();
      move(*device_, Gauge::passthrough_bytes, has_memory ? kTotal - 64 * kMiB : 0);
      EXPECT_EQ(memory.reserve_some(*context_), Preallocation::goes_on);
      reservation_result = result;
      EXPECT_EQ(memory.reserve_some(*context_), Preallocation::ended);
      EXPECT_FALSE(memory.is_left());
      EXPECT_EQ(memory.bytes(), 0u);
      EXPECT_EQ(used(), 0u);
      move(*device_, Gauge::passthrough_bytes, 0);
    }
  }
}

TEST_F(PreallocationTest, MoreThanTheThresholdIsReservedAllTheSame) {
  Preallocation& memory = left_for_later(
      {"CUPOOL_BACKEND=pool", "CUPOOL_PREALLOC=128M", "CUPOOL_RELEASE_THRESHOLD=64M"});
  while (memory.reserve_some(*context_) == Preallocation::goes_on) {
  }
  EXPECT_GE(test::pools->reserved(), 128 * kMiB);
}

}  // namespace
}  // namespace cupool::engine
