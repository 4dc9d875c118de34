// SPDX-License-Identifier: Apache-2.0
// One execution of a program. Executions are told apart by a list of choices (which thread goes on,
// and those of the memory), which are tried depth first; sleep sets leave out orders of independent
// steps. Threads are coroutines, so a run is repeatable.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "memory.h"
#include "weakening.h"

namespace explorer {

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kMostSteps = 2000;

// Unwinds a thread whose execution is of no further interest.
struct Abandoned {};

// What a thread does next.
struct Step {
  Kind kind = Kind::data;
  const Cell* cell = nullptr;
  bool sequential = false;

  bool writes() const {
    return kind == Kind::store || kind == Kind::rmw || kind == Kind::lock || kind == Kind::unlock;
  }
};

inline bool depend(const Step& a, const Step& b) {
  if (a.kind == Kind::spin) return b.writes();
  if (b.kind == Kind::spin) return a.writes();
  if (a.sequential && b.sequential && (a.kind == Kind::fence || b.kind == Kind::fence)) return true;
  return a.cell != nullptr && a.cell == b.cell && (a.writes() || b.writes());
}

struct Choice {
  std::size_t taken = 0;
  std::size_t of = 1;
};

// A stack of its own, for one thread of each execution, one after the other. Switches save no
// signal mask: the system calls for that would cost more than all else.
class Coroutine {
 public:
  /// Runs `body` up to its first suspend(), or to its end.
  void begin(void (*body)()) {
    body_ = body;
    if (made_) return resume();
    made_ = true;
    stack_.reset(new char[kStackBytes]);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack_.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, &Coroutine::loop, 0);
    running_ = this;
    if (_setjmp(outside_) == 0) setcontext(&context);
  }
  void resume() {
    running_ = this;
    if (_setjmp(outside_) == 0) _longjmp(inside_, 1);
  }
  void suspend() {
    if (_setjmp(inside_) == 0) _longjmp(outside_, 1);
  }

 private:
  [[noreturn]] static void loop() {
    Coroutine& self = *running_;
    for (;;) {
      self.body_();
      self.suspend();
    }
  }

  static inline Coroutine* running_ = nullptr;
  std::unique_ptr<char[]> stack_;
  bool made_ = false;
  void (*body_)() = nullptr;
  jmp_buf inside_;
  jmp_buf outside_;
};

// One run from beginning to end, led by a list of choices that it makes longer.
class Execution final : private Referee {
 public:
  Execution(const Program& program, std::vector<Choice>& choices, const Weakening* weakened,
            std::set<Weakening>* seen)
      : choices_(choices),
        weakened_(weakened),
        seen_(seen),
        number_(++begun_),
        memory_(*this, number_) {
    current_ = this;
    program(run_);
    if (run_.bodies.size() + 1 > kMostThreads) std::abort();
  }
  ~Execution() { current_ = nullptr; }
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  static Execution* current() { return current_; }

  void go() {
    for (std::size_t i = 0; i < run_.bodies.size(); ++i) start_thread(i);
    schedule();
    if (!ended_) {
      active_ = nullptr;
      is_after_ = true;
      try {
        for (const auto& check : run_.checks) check();
      } catch (const Abandoned&) {
      }
    }
    end();
    // Threads that have begun unwind, so that what they hold is given back.
    for (auto& thread : threads_) {
      if (thread->begun && !thread->ended) resume(*thread);
    }
    run_ = Threads{};
  }

  const std::string& violation() const { return violation_; }

  void require(bool holds, const char* rule) {
    if (!holds) violate(rule);
  }

  std::uint64_t load(Cell& cell, std::memory_order order, Site site) {
    leave_if_over();
    if (is_idle()) return newest(cell);
    order = weaker(order, Kind::load, site);
    step({Kind::load, &cell, is_sequential(order)}, Leaves::here);
    if (is_idle()) return newest(cell);
    const std::uint64_t value = memory_.load(own().memory, cell, order);
    note(Kind::load, order, site, value);
    return value;
  }

  void store(Cell& cell, std::uint64_t value, std::memory_order order, Site site) {
    if (!is_idle()) {
      order = weaker(order, Kind::store, site);
      step({Kind::store, &cell, is_sequential(order)});
    }
    if (is_idle()) {
      newest(cell) = value;
      return;
    }
    memory_.store(own().memory, cell, value, order);
    note(Kind::store, order, site, value);
  }

  std::uint64_t modify(Cell& cell, const std::function<std::uint64_t(std::uint64_t)>& change,
                       std::memory_order order, Site site) {
    if (!is_idle()) {
      order = weaker(order, Kind::rmw, site);
      step({Kind::rmw, &cell, is_sequential(order)});
    }
    if (is_idle()) {
      std::uint64_t& value = newest(cell);
      const std::uint64_t seen = value;
      value = change(seen);
      return seen;
    }
    const std::uint64_t seen = memory_.modify(own().memory, cell, change, order);
    note(Kind::rmw, order, site, seen);
    return seen;
  }

  bool compare_exchange(Cell& cell, std::uint64_t* expected, std::uint64_t desired,
                        std::memory_order success, std::memory_order failure, Site site) {
    if (!is_idle()) {
      success = weaker(success, Kind::rmw, site);
      failure = weaker(failure, Kind::load, site);
      step({Kind::rmw, &cell, is_sequential(success)}, Leaves::here);
    }
    if (is_idle()) {
      std::uint64_t& value = newest(cell);
      const bool same = value == *expected;
      (same ? value : *expected) = same ? desired : value;
      return same;
    }
    const bool done =
        memory_.compare_exchange(own().memory, cell, expected, desired, success, failure);
    note(Kind::rmw, done ? success : failure, site, *expected);
    return done;
  }

  void fence(std::memory_order order, Site site) {
    if (is_idle()) return;
    order = weaker(order, Kind::fence, site);
    step({Kind::fence, nullptr, is_sequential(order)}, Leaves::here);
    if (is_idle()) return;
    memory_.fence(own().memory, order);
    note(Kind::fence, order, site, 0);
  }

  void lock(Cell& mutex) {
    if (is_idle()) return;
    step({Kind::lock, &mutex, false}, Leaves::here);
    while (!is_idle() && memory_.is_locked(&own().memory, mutex)) {
      own().waits_for = &mutex;
      switch_to_scheduler(Leaves::here);
    }
    own().waits_for = nullptr;
    if (!is_idle()) memory_.lock(own().memory, mutex);
  }

  bool try_lock(Cell& mutex) {
    if (is_idle()) return true;
    step({Kind::lock, &mutex, false}, Leaves::here);
    if (is_idle()) return true;
    if (memory_.is_locked(&own().memory, mutex)) return false;
    memory_.lock(own().memory, mutex);
    return true;
  }

  void unlock(Cell& mutex) {
    if (is_idle()) return;
    step({Kind::unlock, &mutex, false});
    if (!is_idle()) memory_.unlock(own().memory, mutex);
  }

  void spin() {
    leave_if_over();
    if (is_idle()) return;
    Thread& self = own();
    self.polls_at = memory_.writes();
    self.polls = true;
    step({Kind::spin, nullptr, false}, Leaves::here);
    self.polls = false;
    memory_.show_newest(self.memory);
  }

  /// Begins or ends a scope in which the thread does not unwind.
  void hold(int change) {
    if (active_ != nullptr) active_->holds += change;
  }

  std::uint64_t now_ns() const { return now_ns_; }

  void glance(const Cell& cell) {
    if (!is_idle()) step({Kind::load, &cell, false}, Leaves::here);
  }

  void use_data(Cell& cell, bool writes) {
    if (is_idle()) return;
    step({writes ? Kind::store : Kind::load, &cell, false}, Leaves::here);
    if (is_idle()) return;
    memory_.use_data(own().memory, cell, writes);
    note(writes ? Kind::store : Kind::load, std::memory_order_relaxed, Site{"plain", 0}, 0);
  }

  void made(Cell& cell) {
    if (active_ != nullptr) Memory::note_made(active_->memory, cell, number_);
  }

 private:
  struct Thread {
    MemoryThread memory;
    Coroutine* coroutine = nullptr;
    Step next;
    bool begun = false;
    bool ended = false;
    bool polls = false;
    int holds = 0;
    std::uint64_t polls_at = 0;
    const Cell* waits_for = nullptr;
    std::function<void()>* body = nullptr;
    std::vector<std::vector<char>> own;  ///< contents of Threads::own while it does not run
  };

  // The same for what a thread does afterwards, on its way to such a place.
  void leave_if_over() const {
    if (active_ != nullptr && ended_ && may_unwind()) throw Abandoned{};
  }
  bool may_unwind() const { return active_->holds == 0 && std::uncaught_exceptions() == 0; }

  // Outside threads, and once nothing matters any more, the newest value is the only one.
  bool is_idle() const { return active_ == nullptr || ended_; }
  Thread& own() { return *active_; }

  std::uint64_t& newest(Cell& cell) {
    return memory_.newest(active_ == nullptr ? nullptr : &active_->memory, cell);
  }

  std::memory_order weaker(std::memory_order order, Kind kind, Site site) {
    if (seen_ != nullptr) {
      seen_->insert({base_name(site.file), site.line, kind, order, order});
    }
    const bool here = weakened_ != nullptr && weakened_->line == site.line &&
                      weakened_->kind == kind && weakened_->from == order &&
                      weakened_->file == base_name(site.file);
    return here ? weakened_->to : order;
  }

  // --- which thread goes on ---

  void start_thread(std::size_t index) {
    threads_.push_back(std::make_unique<Thread>());
    Thread& thread = *threads_.back();
    thread.memory.index = index;
    thread.body = &run_.bodies[index];
    static std::array<Coroutine, kMostThreads> coroutines;
    thread.coroutine = &coroutines[index];
    thread.memory.view.clock[index] = 1;
    for (const Threads::Area& area : run_.own) {
      thread.own.emplace_back(area.data, area.data + area.bytes);
    }
  }

  static void enter() {
    Execution& self = *current_;
    Thread& thread = *self.active_;
    try {
      (*thread.body)();
    } catch (const Abandoned&) {
    }
    thread.ended = true;
  }

  void resume(Thread& thread) {
    active_ = &thread;
    swap_own(thread);
    if (thread.begun) {
      thread.coroutine->resume();
    } else {
      thread.begun = true;
      thread.coroutine->begin(&Execution::enter);
    }
    swap_own(thread);
    active_ = nullptr;
  }

  void swap_own(Thread& thread) const {
    for (std::size_t i = 0; i < run_.own.size(); ++i) {
      std::swap_ranges(thread.own[i].begin(), thread.own[i].end(), run_.own[i].data);
    }
  }

  // Where a thread of an execution that is over may unwind: not in what destructors do, which is to
  // store, to change and to unlock.
  enum class Leaves { here, later };

  void switch_to_scheduler(Leaves leaves) {
    Thread& self = own();
    self.coroutine->suspend();
    active_ = &self;
    if (ended_ && leaves == Leaves::here && may_unwind()) throw Abandoned{};
  }

  // Tells what comes next, and lets the scheduler decide who goes on.
  void step(const Step& next, Leaves leaves = Leaves::later) {
    own().next = next;
    switch_to_scheduler(leaves);
  }

  bool can_go_on(const Thread& thread) const {
    if (thread.ended) return false;
    if (thread.polls) return memory_.writes() != thread.polls_at;
    return thread.waits_for == nullptr || !memory_.is_locked(*thread.waits_for);
  }

  void schedule() {
    for (auto& thread : threads_) resume(*thread);  // up to the first step of each
    std::vector<std::size_t> asleep;
    std::size_t last = 0;
    for (std::size_t steps = 0; !ended_; ++steps) {
      std::vector<std::size_t> ready;
      for (const auto& thread : threads_) {
        if (can_go_on(*thread)) ready.push_back(thread->memory.index);
      }
      if (ready.empty()) {
        if (std::all_of(threads_.begin(), threads_.end(), [](auto& t) { return t->ended; })) return;
        if (let_time_pass()) {
          asleep.clear();
          continue;
        }
        violate("everyone waits for everyone");
        return;
      }
      if (steps == kMostSteps) violate("a thread polls without end");
      if (ended_) return;
      // The thread that went last first: the first execution has the fewest switches.
      std::stable_partition(ready.begin(), ready.end(), [&](std::size_t t) { return t == last; });
      ready.erase(std::remove_if(ready.begin(), ready.end(),
                                 [&](std::size_t t) {
                                   return std::find(asleep.begin(), asleep.end(), t) !=
                                          asleep.end();
                                 }),
                  ready.end());
      if (ready.empty()) return end();  // every way on was seen from another order
      const std::size_t chosen = choose(ready.size());
      last = ready[chosen];
      asleep.insert(asleep.end(), ready.begin(),
                    ready.begin() + static_cast<std::ptrdiff_t>(chosen));
      const Step done = threads_[last]->next;
      resume(*threads_[last]);
      asleep.erase(std::remove_if(asleep.begin(), asleep.end(),
                                  [&](std::size_t t) { return depend(threads_[t]->next, done); }),
                   asleep.end());
    }
  }

  // Everyone polls: a wait with a limit may come to its end.
  bool let_time_pass() {
    constexpr std::uint64_t kLongestWaitNs = 60'000'000'000;
    const bool someone_polls = std::any_of(threads_.begin(), threads_.end(), [](auto& thread) {
      return !thread->ended && thread->polls;
    });
    if (!someone_polls || now_ns_ > 3 * kLongestWaitNs) return false;
    now_ns_ += kLongestWaitNs;
    memory_.let_time_pass();
    return true;
  }

  std::size_t choose(std::size_t of) override {
    if (of <= 1) return 0;
    if (at_ == choices_.size()) choices_.push_back({0, of});
    if (choices_[at_].of != of) std::abort();  // the program is not repeatable
    return choices_[at_++].taken;
  }

  // --- what comes out ---

  void note(Kind kind, std::memory_order order, Site site, std::uint64_t value) {
    if (history_.size() < kMostSteps) {
      history_.push_back({static_cast<unsigned>(own().memory.index), kind, order, site, value});
    }
  }

  void violate(const char* rule) override {
    if (ended_) return;
    violation_ = rule;
    for (const Note& note : history_) {
      char line[256];
      std::snprintf(line, sizeof line, "\n  thread %u: %s %s:%u (%s) %#llx", note.thread,
                    name_of(note.kind), base_name(note.site.file), note.site.line,
                    name_of(note.order), static_cast<unsigned long long>(note.value));
      violation_ += line;
    }
    ended_ = true;
    if (active_ != nullptr ? may_unwind() : is_after_) throw Abandoned{};
  }

  void end() { ended_ = true; }

  struct Note {
    unsigned thread;
    Kind kind;
    std::memory_order order;
    Site site;
    std::uint64_t value;
  };

  static inline Execution* current_ = nullptr;
  static inline std::uint64_t begun_ = 0;

  Threads run_;
  std::vector<Choice>& choices_;
  const Weakening* const weakened_;
  std::set<Weakening>* const seen_;
  const std::uint64_t number_;
  Memory memory_;
  std::size_t at_ = 0;
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* active_ = nullptr;
  std::uint64_t now_ns_ = 1;
  bool ended_ = false;
  bool is_after_ = false;
  std::string violation_;
  std::vector<Note> history_;
};

}  // namespace explorer
