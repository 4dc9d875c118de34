// SPDX-License-Identifier: Apache-2.0
// An engine of its own whose blocks come from pools, on a driver that knows where memory begins.
#pragma once

#include "engine_fake_pools.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {

class PoolEngineTest : public FastPathTest {
 protected:
  void SetUp() override {
    FastPathTest::SetUp();
    start({{"CUPOOL_BACKEND", "pool"}});
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver_with_pools();
    driver.cuMemGetAddressRange_v2 = [](CUdeviceptr* base, std::size_t*, CUdeviceptr address) {
      *base = address & ~CUdeviceptr{kUnit - 1};  // as the fake driver gives addresses
      return address < kFirstAddress ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
    };
    return driver;
  }

  static constexpr CUdeviceptr kUnit = CUdeviceptr{2} << 20;
  static constexpr CUdeviceptr kFirstAddress = CUdeviceptr{1} << 40;
  static constexpr CUdeviceptr kForeign = 0x1000;  ///< memory that is not CUDA's
};

}  // namespace cupool::engine
