// SPDX-License-Identifier: Apache-2.0
// A thread gives idle memory back, and stays in the driver for longer than the end of its context
// waits for it (I8). What it still has in its hands is not its context's any more.
#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/serve/retire.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

class EndBesideAReleaseTest : public FastPathTest {
 protected:
  static inline std::function<void()> meanwhile;  // in the first call
  static inline std::vector<CUdeviceptr> freed;

  cuda::Driver make_driver() override {
    cuda::Driver driver = FastPathTest::make_driver();
    driver.cuMemFree_v2 = [](CUdeviceptr address) {
      freed.push_back(address);
      if (const auto call = std::exchange(meanwhile, nullptr)) std::thread(call).join();
      return CUDA_SUCCESS;
    };
    return driver;
  }
  void SetUp() override {
    FastPathTest::SetUp();
    freed.clear();
    start({{"CUPOOL_BACKEND", "malloc"}});
  }
  // Three blocks, of which the first is on its way to the driver when `call` is made.
  std::vector<CUdeviceptr> release_beside(const std::function<void()>& call) {
    const std::vector<CUdeviceptr> blocks = allocate_several(3, 1 << 20);
    free_all(blocks);
    meanwhile = call;
    Patience patience;
    allocator_->out_of_memory().give_back_idle(*context_, patience);
    EXPECT_EQ(meanwhile, nullptr);
    return blocks;
  }
};

TEST_F(EndBesideAReleaseTest, FreesNothingOfTheNextOwner) {  // I8
  release_beside([] {});
  ASSERT_EQ(freed.size(), 3u);
  freed.clear();
  release_beside([&] { allocator_->endings().context_gone(*context_, false); });
  EXPECT_EQ(freed.size(), 1u);
}

// The driver has handed the address of one out again, to another context.
TEST_F(EndBesideAReleaseTest, LeavesARecordThatIsReplacedToTheEnd) {  // I8
  Context second(*driver_, reinterpret_cast<CUcontext>(~std::uintptr_t{0}), context_->device());
  Block others;
  others.context = &second;
  std::vector<Block*> replaced;
  const std::vector<CUdeviceptr> blocks = release_beside([&] {
    // Any but the first.
    allocator_->blocks().for_each([&](const Block& each) {
      if (each.address != freed.front()) others.address = CUdeviceptr{each.address};
    });
    replaced.push_back(allocator_->blocks().find(others.address));
    allocator_->blocks().insert(&others, [](const Block&) { return true; });
    context_->set_gone_untouched();
    EXPECT_TRUE(context_->begin_again()) << "the handle names the next one by now";
  });
  EXPECT_EQ(std::count(freed.begin(), freed.end(), CUdeviceptr{others.address}), 0);
  EXPECT_EQ(allocator_->blocks().find(others.address), &others);
  for (int i = 0; i < 8; ++i) replaced.push_back(new_block());
  EXPECT_EQ(std::count(replaced.begin(), replaced.end(), replaced.front()), 1)
      << "the record has one owner";
  for (std::size_t i = 1; i < replaced.size(); ++i) delete_block(replaced[i]);
  LeftBlocks gone = allocator_->blocks().extract([&](const Block&) { return true; });
  EXPECT_EQ(gone.pop(), replaced.front());
  EXPECT_EQ(gone.pop(), &others);
  EXPECT_TRUE(gone.empty());
}

}  // namespace
}  // namespace cupool::engine
