// SPDX-License-Identifier: Apache-2.0
// Runs small concurrent programs in every interleaving, and with every value that C++'s memory
// model lets a load return: release and acquire, relaxed, fences, read-modify-writes, one order of
// what is sequentially consistent. The programs use the shipped code of the engine, whose atomics
// explored_atomic.h replaces. Not modelled: loads that see a later store of their own future (load
// buffering), sequentially consistent loads that come before an earlier weaker load of their
// thread, weak compare-exchanges that fail for nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace explorer {

/// Where an atomic operation stands in the source, so that its order can be weakened there.
struct Site {
  const char* file;
  unsigned line;
  static constexpr Site here(const char* file = __builtin_FILE(),
                             unsigned line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// One program: what its threads do, and what must hold when they have ended.
class Threads {
 public:
  void thread(std::function<void()> body) { bodies.push_back(std::move(body)); }
  /// Runs behind all threads, and sees all that they did.
  void after(std::function<void()> check) { checks.push_back(std::move(check)); }

  /// Of this variable, which is the explored code's for each thread, each thread has a copy, which
  /// begins as the program leaves it.
  void each_has_its_own(void* data, std::size_t bytes) {
    own.push_back({static_cast<char*>(data), bytes});
  }

  struct Area {
    char* data;
    std::size_t bytes;
  };
  std::vector<Area> own;
  std::vector<std::function<void()>> bodies;
  std::vector<std::function<void()>> checks;
};
using Program = std::function<void(Threads&)>;

struct Result {
  std::string violation;  ///< empty: every execution kept every rule
  std::uint64_t executions = 0;
  bool complete = false;  ///< all executions were seen
};

/// Runs the program in every way, until a rule is broken. Stops incomplete after `most` executions.
Result explore(const Program& program, std::uint64_t most = 3'000'000);

/// Each way to weaken one memory order of `file` by a step that none of the programs notices, as
/// "file:line acquire -> relaxed". What no program executes is not weakened.
std::vector<std::string> unneeded_orders(const std::vector<Program>& programs, const char* file);

/// A rule of the program, checked where it stands.
void require(bool holds, const char* rule);

/// While it lives, the thread does not unwind when its execution is over: around destructors that
/// do more than to store, to change and to unlock. What is inside has to end by itself.
class Throughout {
 public:
  Throughout();
  ~Throughout();
  Throughout(const Throughout&) = delete;
  Throughout& operator=(const Throughout&) = delete;
};

// For explored_atomic.h.

enum class Kind : std::uint8_t { load, store, rmw, fence, lock, unlock, spin, data };

/// What the model keeps of an atomic, a mutex or a plain variable during one execution.
class Cell {
 public:
  explicit Cell(std::uint64_t initial = 0) noexcept;
  std::uint64_t initial() const { return initial_; }
  void set_initial(std::uint64_t value) { initial_ = value; }

 private:
  friend class Memory;
  std::uint64_t initial_;
  std::uint64_t execution_ = 0;  ///< the execution that `index_` is of
  std::uint32_t index_ = 0;
  std::uint32_t made_at_ = 0;  ///< by the clock of the thread that made it, 0: before all threads
  std::uint64_t made_in_ = 0;
  std::uint8_t made_by_ = 0;
};

std::uint64_t load(Cell& cell, std::memory_order order, Site site);
void store(Cell& cell, std::uint64_t value, std::memory_order order, Site site);
/// `change(seen)`: the value to store.
std::uint64_t modify(Cell& cell, const std::function<std::uint64_t(std::uint64_t)>& change,
                     std::memory_order order, Site site);
bool compare_exchange(Cell& cell, std::uint64_t* expected, std::uint64_t desired,
                      std::memory_order success, std::memory_order failure, Site site);
void fence(std::memory_order order, Site site);
void lock(Cell& mutex);
bool try_lock(Cell& mutex);
void unlock(Cell& mutex);
/// The thread polls: it goes on once another thread has written something.
void spin();
/// Time that passes only while every thread polls.
std::uint64_t now_ns();
/// A step beside the writes of a cell, which tells nothing: for a device's state as it is just
/// then.
void glance(const Cell& cell);
/// A use of a plain variable: two of them, one a write, must be ordered.
void use_data(Cell& cell, bool writes);

/// A plain variable whose races are found.
template <typename T>
class Data {
 public:
  explicit Data(T value = T{}) : value_(value) {}
  T read() const {
    use_data(cell_, false);
    return value_;
  }
  void write(T value) {
    use_data(cell_, true);
    value_ = value;
  }

 private:
  T value_;
  mutable Cell cell_;
};

}  // namespace explorer
