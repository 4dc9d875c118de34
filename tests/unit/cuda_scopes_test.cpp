// SPDX-License-Identifier: Apache-2.0
// A context is current for a scope, also where the driver refuses once; then nothing is left
// behind.
#include "cuda/scopes.h"

#include <gtest/gtest.h>

namespace cupool::cuda {
namespace {

struct Stack {
  int refused_pushes = 0;
  int refused_pops = 0;
  CUcontext below = nullptr;
  CUcontext top = nullptr;
};
Stack stack;

Driver make_driver() {
  Driver driver{};
  driver.cuCtxGetCurrent = [](CUcontext* context) {
    *context = stack.top;
    return CUDA_SUCCESS;
  };
  driver.cuCtxPushCurrent_v2 = [](CUcontext context) {
    if (stack.refused_pushes > 0) {
      --stack.refused_pushes;
      return CUDA_ERROR_UNKNOWN;
    }
    stack.below = stack.top;
    stack.top = context;
    return CUDA_SUCCESS;
  };
  driver.cuCtxPopCurrent_v2 = [](CUcontext* context) {
    if (stack.refused_pops > 0) {
      --stack.refused_pops;
      return CUDA_ERROR_UNKNOWN;
    }
    *context = stack.top;
    stack.top = stack.below;
    return CUDA_SUCCESS;
  };
  return driver;
}

class ContextScopeTest : public testing::Test {
 protected:
  void SetUp() override { stack = Stack{}; }

  const Driver driver_ = make_driver();
  CUcontext const context_ = reinterpret_cast<CUcontext>(0x100);
};

TEST_F(ContextScopeTest, MakesItsContextCurrentAndRestoresTheOther) {
  stack.top = reinterpret_cast<CUcontext>(0x200);
  {
    const ContextScope scope(driver_, context_);
    EXPECT_TRUE(scope.ok());
    EXPECT_EQ(stack.top, context_);
  }
  EXPECT_EQ(stack.top, reinterpret_cast<CUcontext>(0x200));
}

TEST_F(ContextScopeTest, ARefusalThatPassesIsNone) {
  stack.refused_pushes = 1;
  {
    const ContextScope scope(driver_, context_);
    EXPECT_TRUE(scope.ok());
    EXPECT_EQ(stack.top, context_);
    stack.refused_pops = 1;
  }
  EXPECT_EQ(stack.top, nullptr);
}

TEST_F(ContextScopeTest, OneThatStaysChangesNothing) {
  stack.refused_pushes = 10;
  {
    const ContextScope scope(driver_, context_);
    EXPECT_EQ(scope.result(), CUDA_ERROR_UNKNOWN);
  }
  EXPECT_EQ(stack.top, nullptr);
}

TEST_F(ContextScopeTest, AStickyErrorMayBeThatOfTheContextBelow) {
  Driver driver = driver_;
  driver.cuCtxPushCurrent_v2 = [](CUcontext) { return CUDA_ERROR_LAUNCH_FAILED; };
  const ContextScope scope(driver, context_);
  EXPECT_FALSE(scope.ok());
  EXPECT_EQ(scope.result(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(scope.result_of_context(), CUDA_ERROR_INVALID_CONTEXT);
}

}  // namespace
}  // namespace cupool::cuda
