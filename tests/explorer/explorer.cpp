// SPDX-License-Identifier: Apache-2.0
// The model, by views: a location has its writes in modification order, a thread knows the newest
// one that it may not go behind, and a write carries what its thread knew. Executions are told
// apart by a list of choices (which thread, which write is read, where a write goes), which are
// tried depth first; sleep sets leave out orders of independent steps. Threads are coroutines, so a
// run is repeatable.
#include "explorer.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <tuple>

namespace explorer {

namespace {

constexpr std::size_t kMostThreads = 6;  // the checks behind them count as one
constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kMostSteps = 2000;
constexpr std::uint64_t kFar = std::uint64_t{1} << 40;  // between two writes, so that others fit

// Unwinds a thread whose execution is of no further interest.
struct Abandoned {};

using Clock = std::array<std::uint32_t, kMostThreads>;

// What a thread, or whoever reads a write, has to respect.
struct View {
  std::vector<std::uint64_t> newest;  // of each location: the key of a write
  Clock clock{};

  std::uint64_t at(std::size_t location) const {
    return location < newest.size() ? newest[location] : 0;
  }
  void raise(std::size_t location, std::uint64_t key) {
    if (newest.size() <= location) newest.resize(location + 1);
    newest[location] = std::max(newest[location], key);
  }
  void join(const View& other) {
    if (newest.size() < other.newest.size()) newest.resize(other.newest.size());
    for (std::size_t i = 0; i < other.newest.size(); ++i) {
      newest[i] = std::max(newest[i], other.newest[i]);
    }
    for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other.clock[i]);
  }
};

struct Write {
  std::uint64_t key;
  std::uint64_t value;
  View view;
  bool is_read_by_rmw = false;  // nothing comes between it and the next one
};

struct Location {
  std::vector<Write> writes;  // in modification order
  bool locked = false;        // of a mutex
  View released;              // by the last unlock
  Clock reads{};              // of a plain variable: when each thread last read it
  Clock writes_at{};
};

// What a thread does next.
struct Step {
  Kind kind = Kind::data;
  const Cell* cell = nullptr;
  bool sequential = false;

  bool writes() const {
    return kind == Kind::store || kind == Kind::rmw || kind == Kind::lock || kind == Kind::unlock;
  }
};

bool depend(const Step& a, const Step& b) {
  if (a.kind == Kind::spin) return b.writes();
  if (b.kind == Kind::spin) return a.writes();
  if (a.sequential && b.sequential && (a.kind == Kind::fence || b.kind == Kind::fence)) return true;
  return a.cell != nullptr && a.cell == b.cell && (a.writes() || b.writes());
}

struct Choice {
  std::size_t taken = 0;
  std::size_t of = 1;
};

struct Weakening {
  std::string file;
  unsigned line;
  Kind kind;
  std::memory_order from;
  std::memory_order to;
  bool operator<(const Weakening& other) const {
    return std::tie(file, line, kind, from, to) <
           std::tie(other.file, other.line, other.kind, other.from, other.to);
  }
};

bool acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}
bool is_sequential(std::memory_order order) {
  return order == std::memory_order_seq_cst;
}

const char* name_of(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return "relaxed";
    case std::memory_order_consume:
      return "consume";
    case std::memory_order_acquire:
      return "acquire";
    case std::memory_order_release:
      return "release";
    case std::memory_order_acq_rel:
      return "acq_rel";
    case std::memory_order_seq_cst:
      return "seq_cst";
  }
  return "?";
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"load", "store",  "rmw",  "fence",
                                    "lock", "unlock", "spin", "data"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* base_name(const char* path) {
  const char* base = path;
  for (const char* c = path; *c != '\0'; ++c) {
    if (*c == '/') base = c + 1;
  }
  return base;
}

std::uint64_t executions_begun = 0;

}  // namespace

// One run from beginning to end, led by a list of choices that it makes longer.
class Execution {
 public:
  Execution(const Program& program, std::vector<Choice>& choices, const Weakening* weakened,
            std::set<Weakening>* seen)
      : choices_(choices), weakened_(weakened), seen_(seen), number_(++executions_begun) {
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
    if (is_idle()) return location(cell).writes.back().value;
    order = weaker(order, Kind::load, site);
    step({Kind::load, &cell, is_sequential(order)}, Leaves::here);
    Location& place = location(cell);
    View& view = own().view;
    const std::uint64_t from = lowest(cell, order);
    std::vector<const Write*> readable;
    for (const Write& write : place.writes) {
      if (write.key >= from) readable.push_back(&write);
    }
    const Write& read = *readable[readable.size() - 1 - choose(readable.size())];
    view.raise(cell.index_, read.key);
    own().read_since_spin.push_back(cell.index_);
    see(read.view, order);
    if (is_sequential(order)) sequential_.raise(cell.index_, read.key);
    note(Kind::load, order, site, read.value);
    return read.value;
  }

  void store(Cell& cell, std::uint64_t value, std::memory_order order, Site site) {
    if (!is_idle()) {
      order = weaker(order, Kind::store, site);
      step({Kind::store, &cell, is_sequential(order)});
    }
    if (is_idle()) {
      location(cell).writes.back().value = value;
      return;
    }
    const std::uint64_t from = lowest(cell, order);
    std::vector<std::size_t> places;  // behind which of the writes
    const std::vector<Write>& writes = location(cell).writes;
    for (std::size_t i = 0; i < writes.size(); ++i) {
      if (writes[i].key >= from && !writes[i].is_read_by_rmw) places.push_back(i);
    }
    insert(cell, places[places.size() - 1 - choose(places.size())], value, order, nullptr);
    note(Kind::store, order, site, value);
  }

  std::uint64_t modify(Cell& cell, const std::function<std::uint64_t(std::uint64_t)>& change,
                       std::memory_order order, Site site) {
    if (!is_idle()) {
      order = weaker(order, Kind::rmw, site);
      step({Kind::rmw, &cell, is_sequential(order)});
    }
    if (is_idle()) {
      std::uint64_t& value = location(cell).writes.back().value;
      const std::uint64_t seen = value;
      value = change(seen);
      return seen;
    }
    const std::uint64_t from = lowest(cell, order);
    std::vector<std::size_t> places;
    const std::vector<Write>& writes = location(cell).writes;
    for (std::size_t i = 0; i < writes.size(); ++i) {
      if (writes[i].key >= from && !writes[i].is_read_by_rmw) places.push_back(i);
    }
    const std::size_t at = places[places.size() - 1 - choose(places.size())];
    return exchange_at(cell, at, change(writes[at].value), order, site);
  }

  bool compare_exchange(Cell& cell, std::uint64_t* expected, std::uint64_t desired,
                        std::memory_order success, std::memory_order failure, Site site) {
    if (is_idle()) {
      std::uint64_t& value = location(cell).writes.back().value;
      const bool same = value == *expected;
      (same ? value : *expected) = same ? desired : value;
      return same;
    }
    success = weaker(success, Kind::rmw, site);
    failure = weaker(failure, Kind::load, site);
    step({Kind::rmw, &cell, is_sequential(success)}, Leaves::here);
    const std::uint64_t from = lowest(cell, success);
    std::vector<std::size_t> places;
    const std::vector<Write>& writes = location(cell).writes;
    for (std::size_t i = 0; i < writes.size(); ++i) {
      if (writes[i].key < from) continue;
      if (writes[i].value != *expected || !writes[i].is_read_by_rmw) places.push_back(i);
    }
    const std::size_t at = places[places.size() - 1 - choose(places.size())];
    if (writes[at].value == *expected) {
      exchange_at(cell, at, desired, success, site);
      return true;
    }
    *expected = writes[at].value;
    own().view.raise(cell.index_, writes[at].key);
    own().read_since_spin.push_back(cell.index_);
    see(writes[at].view, failure);
    if (is_sequential(failure)) sequential_.raise(cell.index_, writes[at].key);
    note(Kind::rmw, failure, site, *expected);
    return false;
  }

  void fence(std::memory_order order, Site site) {
    if (is_idle()) return;
    order = weaker(order, Kind::fence, site);
    step({Kind::fence, nullptr, is_sequential(order)}, Leaves::here);
    Thread& self = own();
    if (acquires(order)) self.view.join(self.acquirable);
    if (is_sequential(order)) {
      self.view.join(sequential_);
      sequential_.join(self.view);
    }
    if (releases(order)) self.released = self.view;
    note(Kind::fence, order, site, 0);
  }

  void lock(Cell& mutex) {
    if (is_idle()) return;
    step({Kind::lock, &mutex, false}, Leaves::here);
    while (location(mutex).locked) {
      own().waits_for = &mutex;
      switch_to_scheduler(Leaves::here);
    }
    own().waits_for = nullptr;
    location(mutex).locked = true;
    own().view.join(location(mutex).released);
    ++writes_;
  }

  bool try_lock(Cell& mutex) {
    if (is_idle()) return true;
    step({Kind::lock, &mutex, false}, Leaves::here);
    if (location(mutex).locked) return false;
    location(mutex).locked = true;
    own().view.join(location(mutex).released);
    ++writes_;
    return true;
  }

  void unlock(Cell& mutex) {
    if (is_idle()) return;
    step({Kind::unlock, &mutex, false});
    if (is_idle()) return;
    location(mutex).locked = false;
    location(mutex).released = own().view;
    ++writes_;
  }

  // What it has polled shows its newest value sooner or later.
  void spin() {
    leave_if_over();
    if (is_idle()) return;
    Thread& self = own();
    self.polls_at = writes_;
    self.polls = true;
    step({Kind::spin, nullptr, false}, Leaves::here);
    self.polls = false;
    for (const std::size_t index : self.read_since_spin) {
      self.view.raise(index, locations_[index].writes.back().key);
    }
    self.read_since_spin.clear();
  }

  std::uint64_t now_ns() const { return now_ns_; }

  void use_data(Cell& cell, bool writes) {
    if (is_idle()) return;
    step({writes ? Kind::store : Kind::load, &cell, false}, Leaves::here);
    Location& place = location(cell);
    Thread& self = own();
    for (std::size_t other = 0; other < kMostThreads; ++other) {
      if (other == self.index) continue;
      const bool unordered = place.writes_at[other] > self.view.clock[other] ||
                             (writes && place.reads[other] > self.view.clock[other]);
      if (unordered) violate("two uses of a plain variable, one a write, are not ordered");
    }
    (writes ? place.writes_at : place.reads)[self.index] = ++self.view.clock[self.index];
    note(writes ? Kind::store : Kind::load, std::memory_order_relaxed, Site{"plain", 0}, 0);
  }

  // A cell that a thread makes: others may use it only behind that.
  void made(Cell& cell) {
    if (active_ == nullptr) return;
    cell.made_in_ = number_;
    cell.made_by_ = static_cast<std::uint8_t>(active_->index);
    cell.made_at_ = ++active_->view.clock[active_->index];
  }

 private:
  struct Thread {
    std::size_t index = 0;
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    View view;
    View acquirable;  // of writes that relaxed loads have read
    View released;    // by the last release fence
    Step next;
    bool begun = false;
    bool ended = false;
    bool polls = false;
    std::uint64_t polls_at = 0;
    const Cell* waits_for = nullptr;
    std::vector<std::size_t> read_since_spin;
    std::function<void()>* body = nullptr;
  };

  // The same for what a thread does afterwards, on its way to such a place.
  void leave_if_over() const {
    if (active_ != nullptr && ended_ && std::uncaught_exceptions() == 0) throw Abandoned{};
  }

  // Outside threads, and once nothing matters any more, the newest value is the only one.
  bool is_idle() const { return active_ == nullptr || ended_; }
  Thread& own() { return *active_; }

  Location& location(Cell& cell) {
    if (cell.execution_ != number_) {
      cell.execution_ = number_;
      cell.index_ = static_cast<std::uint32_t>(locations_.size());
      locations_.emplace_back();
      locations_.back().writes.push_back({kFar, cell.initial_, View{}, false});
    }
    if (active_ != nullptr && cell.made_in_ == number_ && !ended_ &&
        cell.made_by_ != active_->index && active_->view.clock[cell.made_by_] < cell.made_at_) {
      violate("a variable is used by a thread that need not see its construction");
    }
    return locations_[cell.index_];
  }

  std::uint64_t lowest(Cell& cell, std::memory_order order) {
    location(cell);
    const std::uint64_t own_lowest = std::max(own().view.at(cell.index_), kFar);
    return is_sequential(order) ? std::max(own_lowest, sequential_.at(cell.index_)) : own_lowest;
  }

  void see(const View& of_write, std::memory_order order) {
    own().acquirable.join(of_write);
    if (acquires(order)) own().view.join(of_write);
  }

  std::uint64_t exchange_at(Cell& cell, std::size_t at, std::uint64_t value,
                            std::memory_order order, Site site) {
    const Write read = locations_[cell.index_].writes[at];
    own().read_since_spin.push_back(cell.index_);
    see(read.view, order);
    locations_[cell.index_].writes[at].is_read_by_rmw = true;
    insert(cell, at, value, order, &read.view);
    note(Kind::rmw, order, site, read.value);
    return read.value;
  }

  // `continues`: what the write that it replaced carried (a release sequence).
  void insert(Cell& cell, std::size_t behind, std::uint64_t value, std::memory_order order,
              const View* continues) {
    std::vector<Write>& writes = locations_[cell.index_].writes;
    const std::uint64_t low = writes[behind].key;
    const bool is_last = behind + 1 == writes.size();
    const std::uint64_t key = is_last ? low + kFar : low + (writes[behind + 1].key - low) / 2;
    if (key == low) std::abort();  // no room between two writes
    Thread& self = own();
    self.view.raise(cell.index_, key);
    ++self.view.clock[self.index];
    View carried = releases(order) ? self.view : self.released;
    carried.raise(cell.index_, key);
    if (continues != nullptr) carried.join(*continues);
    if (is_sequential(order)) sequential_.raise(cell.index_, key);
    writes.insert(writes.begin() + static_cast<std::ptrdiff_t>(behind) + 1,
                  Write{key, value, std::move(carried), false});
    ++writes_;
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
    thread.index = index;
    thread.body = &run_.bodies[index];
    thread.stack.reset(new char[kStackBytes]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &scheduler_;
    makecontext(&thread.context, &Execution::enter, 0);
    thread.view.clock[index] = 1;
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
    thread.begun = true;
    active_ = &thread;
    swapcontext(&scheduler_, &thread.context);
    active_ = nullptr;
  }

  // Where a thread of an execution that is over may unwind: not in what destructors do, which is to
  // store, to change and to unlock.
  enum class Leaves { here, later };

  void switch_to_scheduler(Leaves leaves) {
    Thread& self = own();
    swapcontext(&self.context, &scheduler_);
    active_ = &self;
    if (ended_ && leaves == Leaves::here && std::uncaught_exceptions() == 0) throw Abandoned{};
  }

  // Tells what comes next, and lets the scheduler decide who goes on.
  void step(const Step& next, Leaves leaves = Leaves::later) {
    own().next = next;
    switch_to_scheduler(leaves);
  }

  bool can_go_on(const Thread& thread) const {
    if (thread.ended) return false;
    if (thread.polls) return writes_ != thread.polls_at;
    return thread.waits_for == nullptr || !locations_[thread.waits_for->index_].locked;
  }

  void schedule() {
    for (auto& thread : threads_) resume(*thread);  // up to the first step of each
    std::vector<std::size_t> asleep;
    std::size_t last = 0;
    for (std::size_t steps = 0; !ended_; ++steps) {
      std::vector<std::size_t> ready;
      for (const auto& thread : threads_) {
        if (can_go_on(*thread)) ready.push_back(thread->index);
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
    ++writes_;
    return true;
  }

  std::size_t choose(std::size_t of) {
    if (of <= 1) return 0;
    if (at_ == choices_.size()) choices_.push_back({0, of});
    if (choices_[at_].of != of) std::abort();  // the program is not repeatable
    return choices_[at_++].taken;
  }

  // --- what comes out ---

  void note(Kind kind, std::memory_order order, Site site, std::uint64_t value) {
    if (history_.size() < kMostSteps) {
      history_.push_back({static_cast<unsigned>(own().index), kind, order, site, value});
    }
  }

  void violate(const char* rule) {
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
    if (active_ != nullptr || is_after_) throw Abandoned{};
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

  Threads run_;
  std::vector<Choice>& choices_;
  const Weakening* const weakened_;
  std::set<Weakening>* const seen_;
  const std::uint64_t number_;
  std::size_t at_ = 0;
  std::vector<Location> locations_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* active_ = nullptr;
  View sequential_;
  ucontext_t scheduler_{};
  std::uint64_t writes_ = 0;
  std::uint64_t now_ns_ = 1;
  bool ended_ = false;
  bool is_after_ = false;
  std::string violation_;
  std::vector<Note> history_;
};

namespace {

// The next list of choices, depth first. False: there is none.
bool advance(std::vector<Choice>& choices) {
  while (!choices.empty() && choices.back().taken + 1 == choices.back().of) choices.pop_back();
  if (choices.empty()) return false;
  ++choices.back().taken;
  return true;
}

Result explore_weakened(const Program& program, std::uint64_t most, const Weakening* weakened,
                        std::set<Weakening>* seen) {
  Result result;
  std::vector<Choice> choices;
  while (result.executions < most) {
    {
      Execution execution(program, choices, weakened, seen);
      execution.go();
      result.violation = execution.violation();
    }
    ++result.executions;
    if (!result.violation.empty()) return result;
    if (!advance(choices)) {
      result.complete = true;
      return result;
    }
  }
  return result;
}

std::vector<std::memory_order> weaker_orders(Kind kind, std::memory_order order) {
  switch (order) {
    case std::memory_order_seq_cst:
      if (kind == Kind::load) return {std::memory_order_acquire};
      if (kind == Kind::store) return {std::memory_order_release};
      return {std::memory_order_acq_rel};
    case std::memory_order_acq_rel:
      return {std::memory_order_acquire, std::memory_order_release};
    case std::memory_order_acquire:
    case std::memory_order_release:
    case std::memory_order_consume:
      return {std::memory_order_relaxed};
    case std::memory_order_relaxed:
      break;
  }
  return {};
}

}  // namespace

Result explore(const Program& program, std::uint64_t most) {
  return explore_weakened(program, most, nullptr, nullptr);
}

std::vector<std::string> unneeded_orders(const std::vector<Program>& programs, const char* file) {
  constexpr std::uint64_t kMost = 3'000'000;
  std::set<Weakening> sites;
  for (const Program& program : programs) explore_weakened(program, kMost, nullptr, &sites);
  std::vector<std::string> unneeded;
  for (const Weakening& site : sites) {
    if (site.file != file) continue;
    for (const std::memory_order to : weaker_orders(site.kind, site.from)) {
      Weakening weakened = site;
      weakened.to = to;
      const bool noticed = std::any_of(programs.begin(), programs.end(), [&](const Program& each) {
        return !explore_weakened(each, kMost, &weakened, nullptr).violation.empty();
      });
      if (noticed) continue;
      unneeded.push_back(std::string(file) + ":" + std::to_string(site.line) + " " +
                         name_of(site.kind) + " " + name_of(site.from) + " -> " + name_of(to));
    }
  }
  return unneeded;
}

void require(bool holds, const char* rule) {
  Execution::current()->require(holds, rule);
}

Cell::Cell(std::uint64_t initial) noexcept : initial_(initial) {
  if (Execution::current() != nullptr) Execution::current()->made(*this);
}

std::uint64_t load(Cell& cell, std::memory_order order, Site site) {
  if (Execution::current() == nullptr) return cell.initial();
  return Execution::current()->load(cell, order, site);
}
void store(Cell& cell, std::uint64_t value, std::memory_order order, Site site) {
  if (Execution::current() == nullptr) return cell.set_initial(value);
  Execution::current()->store(cell, value, order, site);
}
std::uint64_t modify(Cell& cell, const std::function<std::uint64_t(std::uint64_t)>& change,
                     std::memory_order order, Site site) {
  return Execution::current()->modify(cell, change, order, site);
}
bool compare_exchange(Cell& cell, std::uint64_t* expected, std::uint64_t desired,
                      std::memory_order success, std::memory_order failure, Site site) {
  return Execution::current()->compare_exchange(cell, expected, desired, success, failure, site);
}
void fence(std::memory_order order, Site site) {
  Execution::current()->fence(order, site);
}
void lock(Cell& mutex) {
  Execution::current()->lock(mutex);
}
bool try_lock(Cell& mutex) {
  return Execution::current()->try_lock(mutex);
}
void unlock(Cell& mutex) {
  Execution::current()->unlock(mutex);
}
void spin() {
  Execution::current()->spin();
}
std::uint64_t now_ns() {
  return Execution::current()->now_ns();
}
void use_data(Cell& cell, bool writes) {
  Execution::current()->use_data(cell, writes);
}

}  // namespace explorer
