// SPDX-License-Identifier: Apache-2.0
// The program's stream-ordered memory, served from caches, on the fake driver (contract 12, I1).
#include "engine/serve/async_memory.h"

#include "engine/reclaim/dependent_launches.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

class AsyncMemoryTest : public PoolEngineTest {
 protected:
  void SetUp() override {
    PoolEngineTest::SetUp();
    start({{"CUPOOL_ASYNC", "serve"}});
  }
  void TearDown() override {
    PoolEngineTest::TearDown();
    DependentLaunch::reset();
    start({});  // serves none
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = test::fake::context();
      return CUDA_SUCCESS;
    };
    driver.cuStreamGetFlags = [](CUstream, unsigned* flags) {
      *flags = CU_STREAM_NON_BLOCKING;
      return CUDA_SUCCESS;
    };
    return driver;
  }
  AsyncMemory& async() { return allocator_->default_pools().async(); }
  AsyncMemory::Served allocate_in_stream(std::uint64_t bytes, CUdeviceptr* address) {
    return async().allocate(address, bytes, nullptr, stream_, [&](std::uint64_t wanted) {
      CUmemoryPool pool = nullptr;
      test::fake::default_pool(&pool, 0);
      return test::fake::allocate_from_pool(address, wanted, pool, stream_);
    });
  }

  const CUstream stream_ = reinterpret_cast<CUstream>(0x5000);
};

TEST_F(AsyncMemoryTest, NoDependentLaunchOverlapsOnceThereIsABlock) {  // I1
  cuda::LaunchAttribute attribute{};
  attribute.id = cuda::kProgrammaticStreamSerialization;
  cuda::LaunchConfiguration configuration{};
  configuration.stream = stream_;
  configuration.attributes = &attribute;
  configuration.attribute_count = 1;
  const auto is_serialised = [&] {
    const DependentLaunch launch(*driver_, &configuration, stream_);
    return launch.configuration() != &configuration;
  };
  EXPECT_FALSE(is_serialised());
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &address), AsyncMemory::Served::by_driver);
  EXPECT_TRUE(is_serialised()) << "it may be handed out again behind any kernel";
  EXPECT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
}

// A context that is about to end keeps visitors out for as long as that takes.
TEST_F(AsyncMemoryTest, StoppingWaitsForNoContextWithoutIdleMemory) {
  CUdeviceptr address = 0;
  ASSERT_EQ(allocate_in_stream(kUnit, &address), AsyncMemory::Served::by_driver);
  const ContextEnd ends(*context_);
  const std::uint64_t start = util::now_ns();
  async().stop();
  EXPECT_LT(util::now_ns() - start, kLongestWaitForOthersNs);
}

}  // namespace
}  // namespace cupool::engine
