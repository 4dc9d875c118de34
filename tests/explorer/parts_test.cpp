// SPDX-License-Identifier: Apache-2.0
// The engine's small lock-free parts in every interleaving. Each part's memory orders are weakened
// one by one as well: what no program notices is named here, with the reason why it stays.
#include "explored_atomic.h"

// The parts themselves, with the explorer's atomics.
#include "engine/block/block.h"
#include "engine/block/shared_mutex.h"
#include "engine/reclaim/claimed_work.h"
#include "engine/reclaim/epochs.cpp"           // NOLINT(bugprone-suspicious-include)
#include "engine/reclaim/host_work_calls.cpp"  // NOLINT(bugprone-suspicious-include)
#include "engine/reclaim/open_epoch.h"
#include "engine/reclaim/use_count.h"

namespace cupool::engine {

// In the place of the class that closes epochs: it alone may.
class ClosedEpochs {
 public:
  static OpenEpoch::Closed close(Epochs& epochs) {
    Epochs::Closed closed{};
    epochs.close(Epochs::IfEmpty::close, &closed);
    return closed.counts;
  }
  static void set_complete(Epochs& epochs, EpochNumber number) { epochs.set_complete(number); }
};

}  // namespace cupool::engine

namespace explorer {
namespace {

using cupool::engine::BlockState;
using cupool::engine::BlockStateCell;
using cupool::engine::CallsUnderWay;
using cupool::engine::ClaimedWork;
using cupool::engine::EpochNumber;
using cupool::engine::Epochs;
using cupool::engine::HostWorkCalls;
using cupool::engine::OpenEpoch;
using cupool::engine::SpinLock;
using cupool::engine::UseCount;
using cupool::engine::value_of;

void expect_right(const Program& program) {
  const Result result = explore(program);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete) << result.executions << " executions";
}

// --- the open epoch ---

// What a thread did before it joined is seen by the thread that closes the epoch that it was told,
// and each epoch has the bytes of exactly those.
Program joining_and_closing(int joiners, int closings) {
  struct State {
    OpenEpoch open;
    std::array<Data<int>, 3> before;
    std::array<EpochNumber, 3> told{};
    std::map<EpochNumber, std::uint64_t> bytes;  // of the closed epochs
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    for (int i = 0; i < joiners; ++i) {
      const auto index = static_cast<std::size_t>(i);
      run.thread([=] {
        state->before[index].write(1);
        state->told[index] = state->open.join(512ull << index, 1);
      });
    }
    run.thread([=] {
      for (int k = 0; k < closings; ++k) {
        const OpenEpoch::Closed closed = state->open.close();
        state->bytes[closed.number] = closed.bytes;
        for (std::size_t i = 0; i < 3; ++i) {
          if ((closed.bytes & (512ull << i)) != 0) {
            require(state->before[i].read() == 1, "the closer sees what the joiner did");
          }
        }
      }
    });
    run.after([=] {
      state->bytes[state->open.number()] = state->open.bytes();
      std::map<EpochNumber, std::uint64_t> expected;
      for (std::size_t i = 0; i < static_cast<std::size_t>(joiners); ++i) {
        expected[state->told[i]] += 512ull << i;
      }
      for (const auto& [number, bytes] : state->bytes) {
        require(expected[number] == bytes, "an epoch has the bytes of those that were told it");
        expected.erase(number);
      }
      require(expected.empty(), "no thread was told an epoch that never was");
    });
  };
}

// A thread that reads the open number waits for that epoch: what another thread's free joined
// before it looked is in that epoch or an older one.
Program looking_at_the_open_epoch() {
  struct State {
    OpenEpoch open;
    Data<int> before;
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    run.thread([=] {
      state->before.write(1);
      state->open.close();
    });
    run.thread([=] {
      if (state->open.number() != EpochNumber{1}) {
        require(state->before.read() == 1, "a later number shows what came before the closing");
      }
    });
    run.thread([=] {
      if (state->open.join(512, 1) != EpochNumber{1}) {
        require(state->before.read() == 1, "so does the number that a joiner is told");
      }
    });
  };
}

TEST(Explorer, OpenEpoch) {
  const std::vector<Program> programs = {joining_and_closing(1, 2), joining_and_closing(2, 1),
                                         joining_and_closing(3, 1), looking_at_the_open_epoch()};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "open_epoch.h"), std::vector<std::string>{});
}

// --- epochs that are complete ---

// A block that is reused once its epoch is complete: behind what the thread that saw the fence did.
Program reuse_behind_a_complete_epoch() {
  struct State {
    Epochs epochs;
    Data<int> block;
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    run.thread([=] {
      state->block.write(1);
      const EpochNumber freed_in = state->epochs.join(512, 1);
      if (state->epochs.complete_up_to() >= freed_in) state->block.write(2);
    });
    run.thread([=] {
      const OpenEpoch::Closed closed = cupool::engine::ClosedEpochs::close(state->epochs);
      // The GPU's last use, as the fence shows it.
      if (closed.bytes != 0) state->block.write(3);
      cupool::engine::ClosedEpochs::set_complete(state->epochs, closed.number);
    });
  };
}

// The newest epoch whose frees left their wait to a message: two threads, and the one that asks.
Program newest_unwaited() {
  struct State {
    Epochs epochs;
    Data<int> first, second;
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    run.thread([=] {
      state->first.write(1);
      state->epochs.set_unwaited(EpochNumber{2});
    });
    run.thread([=] {
      state->second.write(1);
      state->epochs.set_unwaited(EpochNumber{3});
    });
    run.thread([=] {
      const EpochNumber seen = state->epochs.unwaited();
      if (seen == EpochNumber{2}) state->first.read();
      if (seen == EpochNumber{3}) state->second.read();
    });
    run.after([=] {
      require(state->epochs.unwaited() == EpochNumber{3}, "the newest epoch is never lost");
    });
  };
}

TEST(Explorer, Epochs) {
  const std::vector<Program> programs = {reuse_behind_a_complete_epoch(), newest_unwaited()};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "epochs.h"), std::vector<std::string>{});
  EXPECT_EQ(unneeded_orders(programs, "epochs.cpp"), std::vector<std::string>{});
}

// --- the spin lock ---

Program locking(int threads, bool may_stop) {
  struct State {
    SpinLock lock;
    Data<int> guarded{0};
    std::atomic<bool> stop{false};
    int entered = 0;
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    for (int i = 0; i < threads; ++i) {
      run.thread([=] {
        if (may_stop) {
          if (!state->lock.lock_unless(state->stop)) return;
        } else {
          state->lock.lock();
        }
        state->guarded.write(state->guarded.read() + 1);
        ++state->entered;
        state->lock.unlock();
      });
    }
    if (may_stop) {
      run.thread([=] { state->stop.store(true, std::memory_order_relaxed); });
    }
    run.after([=] {
      require(may_stop || state->entered == threads, "every thread gets the lock");
      require(state->guarded.read() == state->entered, "nothing is lost under the lock");
    });
  };
}

TEST(Explorer, SpinLock) {
  const std::vector<Program> programs = {locking(2, false), locking(2, true)};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "shared_mutex.h"), std::vector<std::string>{});
}

// --- the claim of a block ---

// A record that is reused beside two frees of the address that it had: neither gets it before it is
// live again, and then one of them does, behind what its new owner wrote.
Program claims_beside_a_new_life() {
  struct State {
    BlockStateCell state;
    Data<int> record;
    int claimed = 0;
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    state->state.store(BlockState::leaving);
    run.thread([=] {
      state->record.write(1);
      state->state.begin_new_life();
      state->record.write(2);
      state->state.store(BlockState::live, std::memory_order_release);
    });
    for (int i = 0; i < 2; ++i) {
      run.thread([=] {
        const std::uint64_t word = state->state.word();
        if (BlockStateCell::state_of(word) != BlockState::live) return;
        if (!state->state.claim(word)) return;
        ++state->claimed;
        state->record.write(3);
      });
    }
    run.after([=] { require(state->claimed <= 1, "a block is claimed once"); });
  };
}

TEST(Explorer, ClaimOfABlock) {
  expect_right(claims_beside_a_new_life());
}

// --- who waits for users ---

// A user that came too late sees what the waiter published; one that came in time is waited for.
Program waiting_for_users(int users) {
  struct State {
    UseCount count;
    std::atomic<bool> closed{false};
    Data<int> shared;
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    for (int i = 0; i < users; ++i) {
      run.thread([=] {
        const UseCount::Use use(state->count);
        if (!state->closed.load(std::memory_order_seq_cst)) state->shared.read();
      });
    }
    run.thread([=] {
      state->closed.store(true, std::memory_order_seq_cst);
      require(state->count.wait_until_none(), "users leave");
      state->shared.write(1);
    });
  };
}

TEST(Explorer, UsersAndWhoWaitsForThem) {
  const std::vector<Program> programs = {waiting_for_users(1), waiting_for_users(2)};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "use_count.h"), std::vector<std::string>{});
}

// --- work that nothing covers ---

// Who has seen what work does, and finds that all work is covered, comes behind a fence that was
// recorded after that work. The call that submitted it may not have returned. The driver's own
// order is that of `landed`.
template <bool kAtFirst>
Program covering_work(int claims) {
  struct State {
    ClaimedWork<kAtFirst> work;
    std::atomic<int> landed{0};
    std::atomic<int> covered{0};
    std::atomic<bool> seen{false};
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    CallsUnderWay::reset();
    run.thread([=] {
      const CallsUnderWay::Call call;
      state->work.submitted();
      state->landed.fetch_add(1, std::memory_order_seq_cst);
      state->seen.store(true, std::memory_order_release);
      state->work.submitted();
    });
    for (int i = 0; i < claims; ++i) {
      run.thread([=] {
        typename ClaimedWork<kAtFirst>::Claim claim(state->work, true);
        const int fence = state->landed.fetch_add(0, std::memory_order_seq_cst);
        if (fence == 1) state->covered.store(1, std::memory_order_relaxed);
        claim.settle();
      });
    }
    run.thread([=] {
      if (!state->seen.load(std::memory_order_acquire) || state->work.any()) return;
      require(state->covered.load(std::memory_order_relaxed) == 1, "what is covered is complete");
    });
  };
}

TEST(Explorer, WorkThatNothingCovers) {
  expect_right(covering_work<true>(2));
  const std::vector<Program> programs = {covering_work<true>(1), covering_work<false>(1)};
  for (const Program& program : programs) expect_right(program);
  // Who joins a claim asks next whether work is seen at all (PendingWork::Claim), which is not
  // explored.
  const std::vector<std::string> unneeded = unneeded_orders(programs, "claimed_work.h");
  ASSERT_EQ(unneeded.size(), 1u) << testing::PrintToString(unneeded);
  EXPECT_NE(unneeded[0].find("load acquire -> relaxed"), std::string::npos) << unneeded[0];
  EXPECT_EQ(unneeded_orders(programs, "calls_under_way.h"), std::vector<std::string>{});
}

// --- calls whose work touches host memory ---

// Who has seen what a call submits finds the note of it, unless he is told that it may be missing.
// The same thread makes `more` calls behind it, and `others` threads make one each, on one line.
// The driver's own order is that of `landed`.
Program noting(int more, int others) {
  struct State {
    std::atomic<bool> landed{false};
    Data<int> note;
    HostWorkCalls calls;
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    HostWorkCalls::reset();
    run.thread([=] {
      {
        const HostWorkCalls::Call call(&state->calls);
        state->landed.store(true, std::memory_order_release);
        state->note.write(1);
      }
      for (int i = 0; i < more; ++i) const HostWorkCalls::Call another(&state->calls);
    });
    for (int i = 0; i < others; ++i) {
      run.thread([=] { const HostWorkCalls::Call call(&state->calls); });
    }
    run.thread([=] {
      if (!state->landed.load(std::memory_order_acquire) || !state->calls.are_noted()) return;
      require(state->note.read() == 1, "what was seen is noted");
    });
  };
}

TEST(Explorer, CallsWhoseWorkTouchesHostMemory) {
  expect_right(noting(0, 1));
  const std::vector<Program> programs = {noting(0, 0), noting(1, 0)};
  for (const Program& program : programs) expect_right(program);
  EXPECT_EQ(unneeded_orders(programs, "host_work_calls.h"), std::vector<std::string>{});
  EXPECT_EQ(unneeded_orders(programs, "host_work_calls.cpp"), std::vector<std::string>{});
}

}  // namespace
}  // namespace explorer
