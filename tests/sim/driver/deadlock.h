// SPDX-License-Identifier: Apache-2.0
// Everyone waits for everyone: host threads wait in the driver for work behind a host function,
// and the host function waits for them; or threads wait for each other's locks. A real program
// would hang for ever; here the test stops.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "driver/op.h"

namespace cupool::sim {

/// What the calling thread asked of the driver, in the words of a message.
struct Asked {
  const char* call = "";
  const char* what = nullptr;  ///< "stream", "event"; null: the whole context
  const void* handle = nullptr;
};
extern thread_local Asked asked;

/// The program under test makes this call on the calling thread now; null: it has returned.
void note_program_call(const char* symbol);

/// Knows who waits for host functions and proves, from what the kernel tells of this process's
/// threads, that none of the waits can end. Everything is called with the world's lock held.
class Deadlocks {
 public:
  explicit Deadlocks(const std::mutex& world_lock) : world_lock_(world_lock) {}

  /// The calling thread waits for an operation that comes after host functions.
  void waits(const Op& op);
  void waits_no_more();

  /// The calling thread runs a host function.
  void runs(const Op& op);
  void runs_no_more() { running_ = nullptr; }

  /// The calling thread does nothing but look() from now on: circles are then found in which nobody
  /// waits in the driver.
  void watches();

  /// Aborts once the same proof has held for `limit_ms`.
  void look(uint64_t limit_ms);

 private:
  struct Waiter {
    uint64_t number;
    Asked asked;
    const Op* op;
  };

  bool prove(std::string* proof, std::string* picture) const;
  bool held_by_a_waiter(std::string* proof, std::string* picture) const;
  bool circle_of_locks(std::string* proof, std::string* picture) const;
  bool nobody_is_left(std::string* proof, std::string* picture) const;
  [[noreturn]] void report(const std::string& proof) const;

  const std::mutex& world_lock_;
  std::map<pid_t, Waiter> waiters_;
  uint64_t waits_ = 0;
  pid_t watcher_ = 0;  ///< 0: none
  const Op* running_ = nullptr;
  pid_t runner_ = 0;
  uint64_t runs_ = 0;
  uint64_t running_since_ns_ = 0;
  std::string last_picture_;
  uint64_t same_since_ns_ = 0;
};

}  // namespace cupool::sim
