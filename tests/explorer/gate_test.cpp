// SPDX-License-Identifier: Apache-2.0
// The gate of a context in every interleaving of few visitors and ends, and its lives.
#include "explored_atomic.h"

// The parts themselves, with the explorer's atomics.
#include "engine/context/context_gate.cpp"  // NOLINT(bugprone-suspicious-include)
#include "engine/context/context_life.h"

namespace explorer {
namespace {

using cupool::engine::ContextGate;
using cupool::engine::ContextLife;

// I8. Visitors read what the ends write: an end is alone, and a visitor after it sees what it did.
Program visiting_beside_ends(int visitors, int ends, std::uint64_t limit_ns) {
  struct State {
    ContextGate gate;
    Data<int> records{0};
    int entered = 0;
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    for (int i = 0; i < visitors; ++i) {
      run.thread([=] {
        if (!state->gate.enter(limit_ns)) return;
        state->records.read();
        ++state->entered;
        state->gate.leave();
      });
    }
    run.thread([=] {
      for (int i = 0; i < ends; ++i) {
        require(state->gate.close(0), "visitors leave");
        state->records.write(i);
        state->gate.open();
      }
    });
    run.after([=] {
      require(limit_ns != 0 || state->entered == visitors, "who waits without a limit gets in");
      require(!state->gate.is_closed(), "the gate is open in the end");
      require(state->gate.close(0), "and nobody is inside");
    });
  };
}

// An end within a visit of its own thread does not wait for that one.
Program ending_within_a_visit() {
  struct State {
    ContextGate gate;
    Data<int> records{0};
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    run.thread([=] {
      require(state->gate.enter(), "who waits without a limit gets in");
      require(state->gate.close(1), "other visitors leave");
      state->records.write(1);
      state->gate.open();
      state->gate.leave();
    });
    run.thread([=] {
      if (!state->gate.enter(1)) return;
      state->records.read();
      state->gate.leave();
    });
  };
}

// Who waits outside sees what the end did.
Program waiting_for_the_end() {
  struct State {
    ContextGate gate;
    std::atomic<bool> closed{false};
    Data<int> records{0};
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    run.thread([=] {
      state->gate.close(0);
      state->closed.store(true, std::memory_order_release);
      state->records.write(1);
      state->gate.open();
    });
    run.thread([=] {
      if (!state->closed.load(std::memory_order_acquire)) return;
      state->gate.wait_until_open();
      state->records.read();
    });
  };
}

TEST(Explorer, ContextGate) {
  const std::vector<Program> programs = {visiting_beside_ends(1, 1, 0),
                                         visiting_beside_ends(1, 2, 1), ending_within_a_visit(),
                                         waiting_for_the_end()};
  for (const Program& program : programs) {
    const Result result = explore(program);
    EXPECT_EQ(result.violation, "");
    EXPECT_TRUE(result.complete) << result.executions << " executions";
  }
  EXPECT_EQ(unneeded_orders(programs, "context_gate.h"), std::vector<std::string>{});
  EXPECT_EQ(unneeded_orders(programs, "context_gate.cpp"), std::vector<std::string>{});
}

// --- the lives of a context ---

// Who reads the number of a later life does not take it for the one before; and once it may use
// the context again, all that the end has cleared is seen.
Program looking_beside_an_end(int lookers) {
  struct State {
    ContextLife life;
    Data<int> cleared{0};
  };
  return [=](Threads& run) {
    const auto state = std::make_shared<State>();
    for (int i = 0; i < lookers; ++i) {
      run.thread([=] {
        const std::uint64_t life = state->life.incarnation();
        if (!state->life.usable() || life == 1) return;
        require(state->cleared.read() == 1, "a later life begins behind the end of the last one");
      });
    }
    run.thread([=] {
      state->life.end();
      state->cleared.write(1);
      state->life.revive();
    });
    run.after([=] { require(state->life.usable(), "a context that came back is usable"); });
  };
}

// A sticky error that a thread meets beside the end.
Program poisoning_beside_an_end() {
  return [](Threads& run) {
    const auto life = std::make_shared<ContextLife>();
    run.thread([=] { life->set_poisoned(); });
    run.thread([=] { life->end(); });
    run.after([=] { require(life->gone(), "what is gone stays gone"); });
  };
}

// The handle comes back beside the end: the next life begins behind the end, or not yet.
Program coming_back_beside_an_end() {
  struct State {
    ContextGate gate;
    ContextLife life;
    Data<int> cleared{0};
  };
  return [](Threads& run) {
    const auto state = std::make_shared<State>();
    run.thread([=] {
      require(state->gate.close(0), "nobody is inside");
      state->life.end();
      state->cleared.write(1);
      state->gate.open();
    });
    run.thread([=] {
      if (!state->life.begin_again(state->gate)) return;
      const std::uint64_t life = state->life.incarnation();
      if (state->life.usable() && life != 1) state->cleared.read();
    });
    run.thread([=] {
      const std::uint64_t life = state->life.incarnation();
      if (state->life.usable() && life != 1) state->cleared.read();
    });
    run.after([=] {
      require(state->life.begin_again(state->gate), "the end is over");
      require(state->life.usable(), "a context that came back is usable");
    });
  };
}

TEST(Explorer, ContextLife) {
  const std::vector<Program> programs = {looking_beside_an_end(1), looking_beside_an_end(2),
                                         poisoning_beside_an_end(), coming_back_beside_an_end()};
  for (const Program& program : programs) {
    const Result result = explore(program);
    EXPECT_EQ(result.violation, "");
    EXPECT_TRUE(result.complete) << result.executions << " executions";
  }
  EXPECT_EQ(unneeded_orders(programs, "context_life.h"), std::vector<std::string>{});
}

}  // namespace
}  // namespace explorer
