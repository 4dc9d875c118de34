// SPDX-License-Identifier: Apache-2.0
// The model of memory, by views: a location has its writes in modification order, a thread knows
// the newest one that it may not go behind, and a write carries what its thread knew.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "explorer.h"

namespace explorer {

constexpr std::size_t kMostThreads = 6;  // the checks behind them count as one

using Clock = std::array<std::uint32_t, kMostThreads>;

/// What a thread, or whoever reads a write, has to respect.
struct View {
  std::vector<std::uint64_t> newest;  ///< of each location: the key of a write
  Clock clock{};

  std::uint64_t at(std::size_t location) const {
    return location < newest.size() ? newest[location] : 0;
  }
  void raise(std::size_t location, std::uint64_t key);
  void join(const View& other);
};

bool acquires(std::memory_order order);
bool releases(std::memory_order order);
bool is_sequential(std::memory_order order);

/// What the memory keeps of a thread.
struct MemoryThread {
  std::size_t index = 0;
  View view;
  View acquirable;  ///< of writes that relaxed loads have read
  View released;    ///< by the last release fence
  std::vector<std::size_t> read_since_spin;
};

/// Decides what is open in an execution, and ends one that breaks a rule.
class Referee {
 public:
  virtual std::size_t choose(std::size_t of) = 0;
  virtual void violate(const char* rule) = 0;

 protected:
  ~Referee() = default;
};

/// All locations of one execution.
class Memory {
 public:
  Memory(Referee& referee, std::uint64_t execution) : referee_(referee), execution_(execution) {}

  // What a thread does. Which write is read and where one goes is the referee's choice.
  std::uint64_t load(MemoryThread& self, Cell& cell, std::memory_order order);
  void store(MemoryThread& self, Cell& cell, std::uint64_t value, std::memory_order order);
  /// Returns what was there.
  std::uint64_t modify(MemoryThread& self, Cell& cell,
                       const std::function<std::uint64_t(std::uint64_t)>& change,
                       std::memory_order order);
  bool compare_exchange(MemoryThread& self, Cell& cell, std::uint64_t* expected,
                        std::uint64_t desired, std::memory_order success,
                        std::memory_order failure);
  void fence(MemoryThread& self, std::memory_order order);
  /// The mutex is free.
  void lock(MemoryThread& self, Cell& mutex);
  void unlock(MemoryThread& self, Cell& mutex);
  void use_data(MemoryThread& self, Cell& cell, bool writes);
  /// What it has polled shows its newest value from now on.
  void show_newest(MemoryThread& self);
  /// A cell that a thread makes: others may use it only behind that.
  static void note_made(MemoryThread& self, Cell& cell, std::uint64_t execution);

  bool is_locked(MemoryThread* self, Cell& mutex) { return location(self, mutex).locked; }
  bool is_locked(const Cell& mutex) const { return locations_[mutex.index_].locked; }
  /// The newest value, outside threads the only one.
  std::uint64_t& newest(MemoryThread* self, Cell& cell) {
    return location(self, cell).writes.back().value;
  }
  /// How often anything was written.
  std::uint64_t writes() const { return writes_; }
  /// Wakes those who poll.
  void let_time_pass() { ++writes_; }

 private:
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

  Location& location(MemoryThread* self, Cell& cell);
  std::uint64_t lowest(MemoryThread& self, Cell& cell, std::memory_order order);
  template <typename Suits>
  std::size_t choose_write(const Location& place, std::uint64_t from, const Suits& suits);
  static void see(MemoryThread& self, const View& of_write, std::memory_order order);
  std::uint64_t exchange_at(MemoryThread& self, Cell& cell, std::size_t at, std::uint64_t value,
                            std::memory_order order);
  void insert(MemoryThread& self, Cell& cell, std::size_t behind, std::uint64_t value,
              std::memory_order order, const View* continues);

  Referee& referee_;
  const std::uint64_t execution_;
  std::vector<Location> locations_;
  View sequential_;
  std::uint64_t writes_ = 0;
};

}  // namespace explorer
