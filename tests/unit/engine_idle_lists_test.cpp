// SPDX-License-Identifier: Apache-2.0
// The lists of a thread's idle blocks, the streams that its threads share, and the questions to
// neighbours, each by itself.
#include "engine/thread/idle_lists.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <set>

#include "engine/backend/stream_stock.h"
#include "engine/ipc/neighbours.h"
#include "engine_network.h"
#include "util/clock.h"

namespace cupool::engine {
namespace {

class IdleListsTest : public testing::Test {
 protected:
  Block* block(std::uint64_t capacity, bool has_kind) {
    Block& made = blocks_.emplace_back();
    made.capacity = capacity;
    if (has_kind) made.kind = kind_of_small(small_class(capacity), true);
    made.state.store(BlockState::freed);
    return &made;
  }
  std::deque<Block> blocks_;
  IdleLists lists_;
};

TEST_F(IdleListsTest, ABlockWithoutAKindGoesToItsClass) {
  for (const bool has_kind : {true, false}) {
    Block* const cached = block(1024, has_kind);
    EXPECT_TRUE(lists_.cache_one(cached, 4096));
    EXPECT_EQ(lists_.pop_small(small_class(1024)), cached);
  }
}

TEST_F(IdleListsTest, NothingIsTakenInBeyondTheLimit) {
  EXPECT_FALSE(lists_.cache_one(block(1024, true), 1023));
  EXPECT_TRUE(lists_.cache_one(block(1024, true), 1024));
  BlockList none;
  lists_.cache(none, 1 << 20);
  EXPECT_EQ(lists_.pop_all().count, 1u);
  EXPECT_TRUE(lists_.pop_all().empty());
}

TEST(StreamStockTest, AStreamIsPutBackAsOftenAsItWasTaken) {
  StreamStock stock;
  const auto destroy = [](CUstream) { ADD_FAILURE(); };
  const auto create = [](std::uintptr_t number) {
    return [number](CUstream* stream) {
      *stream = reinterpret_cast<CUstream>(number << 12);
      return CUDA_SUCCESS;
    };
  };
  CUstream first = nullptr;
  CUstream second = nullptr;
  ASSERT_EQ(stock.take(create(1), destroy, &first), CUDA_SUCCESS);
  ASSERT_EQ(stock.take(create(2), destroy, &second), CUDA_SUCCESS);
  EXPECT_NE(first, second) << "each thread has its own, as long as there are few";
  for (int i = 0; i < 3; ++i) stock.put_back(first);
  CUstream again = nullptr;
  ASSERT_EQ(stock.take(create(3), destroy, &again), CUDA_SUCCESS);
  EXPECT_EQ(again, first);
  ASSERT_EQ(stock.take(create(3), destroy, &again), CUDA_SUCCESS);
  EXPECT_EQ(again, reinterpret_cast<CUstream>(std::uintptr_t{3} << 12)) << "it was taken once";
}

// Each thread finds none while the others create theirs.
TEST(StreamStockTest, ThreadsThatComeTogetherShareAFewStreams) {
  constexpr std::uintptr_t kThreads = 2 * StreamStock::kStreams;
  StreamStock stock;
  std::uintptr_t created = 0;
  std::set<CUstream> destroyed;
  std::set<CUstream> taken;
  const auto destroy = [&](CUstream stream) { destroyed.insert(stream); };
  std::function<CUresult(CUstream*)> create = [&](CUstream* stream) {
    *stream = reinterpret_cast<CUstream>(++created << 12);
    CUstream others = nullptr;
    if (created < kThreads) {
      EXPECT_EQ(stock.take(create, destroy, &others), CUDA_SUCCESS);
      taken.insert(others);
    }
    return CUDA_SUCCESS;
  };
  CUstream first = nullptr;
  ASSERT_EQ(stock.take(create, destroy, &first), CUDA_SUCCESS);
  taken.insert(first);
  EXPECT_EQ(created, kThreads);
  const StreamStock::Streams all = stock.all();
  EXPECT_EQ(std::set<CUstream>(all.begin(), all.end()), taken);
  EXPECT_EQ(taken.size(), StreamStock::kStreams);
  EXPECT_EQ(destroyed.size(), kThreads - StreamStock::kStreams);
  for (const CUstream each : destroyed) EXPECT_EQ(taken.count(each), 0u);
}

TEST(NeighboursTest, NobodyIsAskedForADeviceThatIsNotKnownOrWithoutTime) {
  if (!test::leave_network()) GTEST_SKIP() << "no namespace of the network can be made here";
  using ipc::Neighbours;
  channel::DeviceId device{};
  device[0] = 1;
  Neighbours neighbours;
  EXPECT_EQ(neighbours.ask(channel::kNoDevice, 1 << 20, Neighbours::kLongestAskNs),
            Neighbours::Answer::nothing);
  EXPECT_EQ(neighbours.ask(device, 1 << 20, 0), Neighbours::Answer::nothing);
  // Here there is none; whatever is wanted, that takes no time.
  for (const std::uint64_t wanted : {std::uint64_t{0}, std::uint64_t{1} << 20, UINT64_MAX}) {
    Neighbours others;
    EXPECT_EQ(others.ask(device, wanted, Neighbours::kLongestAskNs), Neighbours::Answer::nothing);
  }
}

}  // namespace
}  // namespace cupool::engine
