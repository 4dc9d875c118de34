// SPDX-License-Identifier: Apache-2.0
// The model itself: what C++ allows is found, what it forbids is not. The programs are the usual
// litmus tests of memory models, under their usual names.
#include "explored_atomic.h"

namespace explorer {
namespace {

using Word = std::explored_atomic<int>;
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;
constexpr auto acq_rel = std::memory_order_acq_rel;
constexpr auto seq_cst = std::memory_order_seq_cst;

// Whether some execution ends with `outcome()`.
template <typename State>
bool is_possible(const std::function<void(Threads&, std::shared_ptr<State>)>& threads,
                 const std::function<bool(const State&)>& outcome) {
  const Result result = explore([&](Threads& run) {
    const auto state = std::make_shared<State>();
    threads(run, state);
    run.after([state, &outcome] { require(!outcome(*state), "found"); });
  });
  EXPECT_TRUE(result.complete || result.violation.rfind("found", 0) == 0) << result.violation;
  return !result.violation.empty();
}

struct Two {
  Word x{0}, y{0};
  int a = -1, b = -1, c = -1, d = -1;
};

bool store_buffering(std::memory_order store, std::memory_order load, bool fences = false) {
  return is_possible<Two>(
      [=](Threads& run, const std::shared_ptr<Two>& s) {
        run.thread([=] {
          s->x.store(1, store);
          if (fences) std::explored_fence(seq_cst);
          s->a = s->y.load(load);
        });
        run.thread([=] {
          s->y.store(1, store);
          if (fences) std::explored_fence(seq_cst);
          s->b = s->x.load(load);
        });
      },
      [](const Two& s) { return s.a == 0 && s.b == 0; });
}

TEST(Model, StoreBuffering) {
  EXPECT_TRUE(store_buffering(relaxed, relaxed));
  EXPECT_TRUE(store_buffering(release, acquire));
  EXPECT_TRUE(store_buffering(seq_cst, acquire));
  EXPECT_FALSE(store_buffering(seq_cst, seq_cst));
  EXPECT_FALSE(store_buffering(relaxed, relaxed, true));
}

bool message_passing(std::memory_order store, std::memory_order load, bool fences = false) {
  return is_possible<Two>(
      [=](Threads& run, const std::shared_ptr<Two>& s) {
        run.thread([=] {
          s->x.store(1, relaxed);
          if (fences) std::explored_fence(release);
          s->y.store(1, store);
        });
        run.thread([=] {
          s->a = s->y.load(load);
          if (fences) std::explored_fence(acquire);
          s->b = s->x.load(relaxed);
        });
      },
      [](const Two& s) { return s.a == 1 && s.b == 0; });
}

TEST(Model, MessagePassing) {
  EXPECT_TRUE(message_passing(relaxed, relaxed));
  EXPECT_TRUE(message_passing(release, relaxed));
  EXPECT_TRUE(message_passing(relaxed, acquire));
  EXPECT_FALSE(message_passing(release, acquire));
  EXPECT_FALSE(message_passing(relaxed, relaxed, true));
}

bool independent_reads(std::memory_order store, std::memory_order load) {
  return is_possible<Two>(
      [=](Threads& run, const std::shared_ptr<Two>& s) {
        run.thread([=] { s->x.store(1, store); });
        run.thread([=] { s->y.store(1, store); });
        run.thread([=] {
          s->a = s->x.load(load);
          s->b = s->y.load(load);
        });
        run.thread([=] {
          s->c = s->y.load(load);
          s->d = s->x.load(load);
        });
      },
      [](const Two& s) { return s.a == 1 && s.b == 0 && s.c == 1 && s.d == 0; });
}

TEST(Model, IndependentReadsOfIndependentWrites) {
  EXPECT_TRUE(independent_reads(release, acquire));
  EXPECT_FALSE(independent_reads(seq_cst, seq_cst));
}

TEST(Model, ReadsOfOneLocationAreCoherent) {
  EXPECT_FALSE(is_possible<Two>(
      [](Threads& run, const std::shared_ptr<Two>& s) {
        run.thread([=] { s->x.store(1, relaxed); });
        run.thread([=] {
          s->a = s->x.load(relaxed);
          s->b = s->x.load(relaxed);
        });
      },
      [](const Two& s) { return s.a == 1 && s.b == 0; }));
}

// Two stores by different threads may be seen in the order that the loads do not suggest.
TEST(Model, AStoreMayComeBeforeOneThatIsThere) {
  EXPECT_TRUE(is_possible<Two>(
      [](Threads& run, const std::shared_ptr<Two>& s) {
        run.thread([=] {
          s->x.store(1, relaxed);
          s->y.store(1, relaxed);
        });
        run.thread([=] {
          s->y.store(2, relaxed);
          s->x.store(2, relaxed);
        });
        run.after([=] {
          s->a = s->x.load(relaxed);
          s->b = s->y.load(relaxed);
        });
      },
      [](const Two& s) { return s.a == 1 && s.b == 2; }))
      << "2 + 2 W";
}

bool release_sequence(std::memory_order rmw, bool plain_store) {
  return is_possible<Two>(
      [=](Threads& run, const std::shared_ptr<Two>& s) {
        run.thread([=] {
          s->x.store(1, relaxed);
          s->y.store(1, release);
        });
        run.thread([=] {
          if (plain_store) {
            if (s->y.load(relaxed) == 1) s->y.store(2, rmw);
          } else {
            s->y.fetch_add(1, rmw);
          }
        });
        run.thread([=] {
          s->a = s->y.load(acquire);
          s->b = s->x.load(relaxed);
        });
      },
      [](const Two& s) { return s.a == 2 && s.b == 0; });
}

TEST(Model, AReadModifyWriteContinuesAReleaseSequence) {
  EXPECT_FALSE(release_sequence(relaxed, false));
  EXPECT_TRUE(release_sequence(relaxed, true));
}

TEST(Model, ReadModifyWritesLoseNothing) {
  EXPECT_FALSE(is_possible<Two>(
      [](Threads& run, const std::shared_ptr<Two>& s) {
        for (int i = 0; i < 3; ++i) run.thread([=] { s->x.fetch_add(1, relaxed); });
      },
      [](const Two& s) { return s.x.load(relaxed) != 3; }));
  EXPECT_TRUE(is_possible<Two>(
      [](Threads& run, const std::shared_ptr<Two>& s) {
        for (int i = 0; i < 2; ++i) {
          run.thread([=] { s->x.store(s->x.load(relaxed) + 1, relaxed); });
        }
      },
      [](const Two& s) { return s.x.load(relaxed) != 2; }));
}

TEST(Model, CompareExchangeSucceedsOnce) {
  EXPECT_FALSE(is_possible<Two>(
      [](Threads& run, const std::shared_ptr<Two>& s) {
        const auto take = [s](int* won) {
          int expected = 0;
          *won = s->x.compare_exchange_strong(expected, 1, acq_rel, relaxed) ? 1 : 0;
        };
        run.thread([=] { take(&s->a); });
        run.thread([=] { take(&s->b); });
      },
      [](const Two& s) { return s.a + s.b != 1; }));
}

Program two_writers_of_plain_data(bool locked) {
  struct State {
    std::explored_mutex mutex;
    Data<int> data;
  };
  return [locked](Threads& run) {
    const auto state = std::make_shared<State>();
    for (int i = 0; i < 2; ++i) {
      run.thread([state, locked, i] {
        if (locked) state->mutex.lock();
        state->data.write(i);
        if (locked) state->mutex.unlock();
      });
    }
  };
}

TEST(Model, RacesOfPlainDataAreFound) {
  EXPECT_NE(explore(two_writers_of_plain_data(false)).violation, "");
  const Result locked = explore(two_writers_of_plain_data(true));
  EXPECT_EQ(locked.violation, "");
  EXPECT_TRUE(locked.complete);
}

TEST(Model, WhatIsMadeMustBePublished) {
  for (const auto order : {relaxed, release}) {
    const Result result = explore([order](Threads& run) {
      struct State {
        std::explored_atomic<Word*> shared{nullptr};
        std::unique_ptr<Word> made;
      };
      const auto state = std::make_shared<State>();
      run.thread([=] {
        state->made = std::make_unique<Word>(7);
        state->shared.store(state->made.get(), order);
      });
      run.thread([=] {
        Word* const seen = state->shared.load(acquire);
        if (seen != nullptr) require(seen->load(relaxed) == 7, "the value it was made with");
      });
    });
    EXPECT_EQ(result.violation.empty(), order == release) << result.violation;
  }
}

TEST(Model, EveryoneWhoWaitsForEveryoneIsAVerdict) {
  struct State {
    std::explored_mutex first, second;
  };
  const Result result = explore([](Threads& run) {
    const auto state = std::make_shared<State>();
    const auto take = [state](std::explored_mutex& outer, std::explored_mutex& inner) {
      outer.lock();
      inner.lock();
      inner.unlock();
      outer.unlock();
    };
    run.thread([=] { take(state->first, state->second); });
    run.thread([=] { take(state->second, state->first); });
  });
  EXPECT_EQ(result.violation.rfind("everyone waits for everyone", 0), 0u) << result.violation;
}

TEST(Model, WhoPollsSeesTheEnd) {
  const Result result = explore([](Threads& run) {
    const auto flag = std::make_shared<Word>(0);
    run.thread([=] {
      while (flag->load(relaxed) == 0) spin();
    });
    run.thread([=] { flag->store(1, relaxed); });
  });
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete);
}

TEST(Model, WeakerOrdersThatNobodyNoticesAreNamed) {
  const Program passing = [](Threads& run) {
    struct State {
      Word flag{0};
      Data<int> data;
    };
    const auto state = std::make_shared<State>();
    run.thread([=] {
      state->data.write(1);
      state->flag.store(1, std::memory_order_release);
    });
    run.thread([=] {
      if (state->flag.load(std::memory_order_seq_cst) == 1) state->data.read();
    });
  };
  const std::vector<std::string> unneeded = unneeded_orders({passing}, "model_test.cpp");
  ASSERT_EQ(unneeded.size(), 1u);
  EXPECT_NE(unneeded[0].find("load seq_cst -> acquire"), std::string::npos) << unneeded[0];
}

}  // namespace
}  // namespace explorer
