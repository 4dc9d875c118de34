// SPDX-License-Identifier: Apache-2.0
// The pointer map in every interleaving, with tables so small that they are replaced and reused
// beside the look-ups.
#include "explored_atomic.h"

// The map itself, with the explorer's atomics.
#include "engine/block/pointer_map.cpp"  // NOLINT(bugprone-suspicious-include)

namespace explorer {
namespace {

using cupool::engine::Block;
using cupool::engine::BlockState;
using cupool::engine::PointerMap;

constexpr CUdeviceptr kPage = 0x200;

// A map, blocks to put into it, and of each a plain variable that its owner has written before.
struct World {
  explicit World(unsigned log2) : map(log2) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].address = kPage * (i + 1);
      blocks[i].state.store(BlockState::live);
    }
  }
  void insert(std::size_t index) {
    made[index].write(1);
    map.insert(&blocks[index], [](const Block&) { return false; });
  }
  void erase(std::size_t index) { require(map.erase(&blocks[index]), "what was there is removed"); }

  // The block of this address, whose making the caller then sees.
  Block* find(CUdeviceptr address) {
    Block* const found = map.find(address);
    if (found == nullptr) return nullptr;
    const auto index = static_cast<std::size_t>(found - blocks.data());
    require(made[index].read() == 1, "who finds a block sees how it was made");
    require(found->address == address, "what is found has the address");
    return found;
  }

  PointerMap map;
  std::array<Block, 6> blocks;
  std::array<Data<int>, 6> made;
};

void expect_right(const Program& program) {
  const Result result = explore(program);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete) << result.executions << " executions";
}

// A block that one thread adds: another finds it or not, and must find it once it was told.
Program finding_beside_an_insertion() {
  struct State : World {
    using World::World;
    std::atomic<bool> told{false};
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>(2);
    run.thread([=] {
      state->insert(0);
      state->told.store(true, std::memory_order_release);
    });
    run.thread([=] {
      const bool told = state->told.load(std::memory_order_acquire);
      require(state->find(kPage) != nullptr || !told, "a block that was handed on is found");
      require(state->find(3 * kPage) == nullptr, "no other address is");
    });
  };
}

// A second block takes the first one's place.
Program replacing_a_block() {
  return [](Threads& run) {
    const auto state = std::make_shared<World>(2);
    state->blocks[1].address = kPage;
    state->insert(0);
    run.thread([=] {
      state->erase(0);
      state->insert(1);
    });
    run.thread([=] { state->find(kPage); });
    run.thread([=] {
      Block* const found = state->map.find_at_once(kPage);
      if (found != nullptr)
        state->made[static_cast<std::size_t>(found - state->blocks.data())].read();
    });
    run.after([=] { require(state->find(kPage) == &state->blocks[1], "the last one stays"); });
  };
}

// A block that stays is found whatever happens to the table.
Program finding_beside_growth() {
  return [](Threads& run) {
    const auto state = std::make_shared<World>(1);
    state->insert(0);
    run.thread([=] { state->insert(1); });
    run.thread(
        [=] { require(state->find(kPage) == &state->blocks[0], "a block that stays is found"); });
    run.thread([=] { state->map.find_at_once(kPage); });
  };
}

// The same where the table is replaced, and the first one is then used again.
Program finding_beside_reuse() {
  return [](Threads& run) {
    const auto state = std::make_shared<World>(2);
    state->insert(0);
    state->insert(1);
    state->erase(1);
    run.thread([=] {
      state->insert(2);  // another table
      state->erase(2);
      state->insert(3);  // the first one
    });
    run.thread(
        [=] { require(state->find(kPage) == &state->blocks[0], "a block that stays is found"); });
  };
}

// A slot of another life of the table: the key is not joined with the block of its former key.
Program a_slot_of_two_blocks() {
  return [](Threads& run) {
    const auto state = std::make_shared<World>(2);
    state->insert(0);
    state->insert(1);
    run.thread([=] {
      state->erase(1);
      state->insert(2);  // another table
      state->erase(2);
      state->insert(4);  // the first one, at the place of 1
    });
    run.thread([=] {
      Block* const found = state->map.find_at_once(5 * kPage);
      require(found == nullptr || found == &state->blocks[4], "a key comes with its own block");
    });
  };
}

// Its former key is not joined with the block that has taken its place, either.
Program a_slot_that_another_block_takes() {
  return [](Threads& run) {
    const auto state = std::make_shared<World>(2);
    state->blocks[1].address = 6 * kPage;  // where the search for block 0 begins
    state->blocks[3].address = 9 * kPage;  // there as well
    state->insert(1);
    state->insert(0);  // behind it
    state->erase(1);
    run.thread([=] {
      state->insert(2);  // another table
      state->erase(2);
      state->insert(3);  // the first one, where 0 was
    });
    run.thread([=] {
      require(state->find(kPage) == &state->blocks[0], "a block comes with its own key");
    });
  };
}

std::vector<Program> all_programs() {
  return {finding_beside_an_insertion(),     replacing_a_block(),
          finding_beside_growth(),           a_slot_of_two_blocks(),
          a_slot_that_another_block_takes(), finding_beside_reuse()};
}

TEST(Explorer, PointerMap) {
  for (const Program& program : all_programs()) expect_right(program);
}

// Of weakenings that no program notices, the kinds.
std::set<std::string> kinds_of(const std::vector<std::string>& unneeded) {
  std::set<std::string> kinds;
  for (const std::string& text : unneeded) kinds.insert(text.substr(text.find(' ') + 1));
  return kinds;
}

// Some minutes: tests/explorer/run.sh.
TEST(Explorer, DISABLED_OrdersOfThePointerMap) {
  // Each of a look-up's is noticed.
  EXPECT_EQ(kinds_of(unneeded_orders(all_programs(), "pointer_map.h")), std::set<std::string>{});
  // Writers exclude one another, so they need not acquire; what one of their steps releases, others
  // release as well. They are no part of a look-up, and cost nothing that could be measured. The
  // fence is noticed, and so is the publication of a table.
  const std::set<std::string> writers = {"rmw acq_rel -> acquire", "rmw acq_rel -> release",
                                         "store release -> relaxed"};
  EXPECT_EQ(kinds_of(unneeded_orders(all_programs(), "pointer_map.cpp")), writers);
}

}  // namespace
}  // namespace explorer
