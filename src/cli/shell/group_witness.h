// SPDX-License-Identifier: Apache-2.0
// Distinguishes signals for the command alone from signals for its whole process group, which the
// program has got too. The receiver cannot tell them apart, so a second process watches.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace cupool::cli {

/// A child process in the command's process group that reports the group's signals. It keeps none
/// of the command's files open, has another name (pkill and killall of the command miss it), and
/// ends with the command.
class GroupWitness {
 public:
  struct Sighting {
    int signal;
    pid_t sender;
  };

  /// Starts it. Call with `signals` blocked, which it inherits.
  explicit GroupWitness(const sigset_t& signals);
  ~GroupWitness();
  GroupWitness(const GroupWitness&) = delete;
  GroupWitness& operator=(const GroupWitness&) = delete;

  /// Readable when a report is waiting; -1 without a witness, or after its end.
  int descriptor() const { return descriptor_; }
  std::vector<Sighting> read();
  /// Its process; -1 without one.
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  int descriptor_ = -1;
};

/// Signals sent to the command, held back for a moment. timeout(1) signals first a process and then
/// its whole group. The program gets the second signal and must not get the first one as well.
/// Times are those of util::now_ns. Pure.
class HeldSignals {
 public:
  static constexpr std::uint64_t kHoldNs = 20'000'000;  // between two system calls of the sender

  /// The command received the signal.
  void arrived(int signal, pid_t sender, std::uint64_t now);
  /// The group received it: drops the sender's held signals, and those that arrive within kHoldNs.
  void seen_by_group(int signal, pid_t sender, std::uint64_t now);
  /// Removes and returns the signals to forward: those held for kHoldNs.
  std::vector<int> due(std::uint64_t now);
  /// Milliseconds until the next signal is due; -1 if none is held.
  int wait_ms(std::uint64_t now) const;

 private:
  struct Entry {
    int signal;
    pid_t sender;
    std::uint64_t until;
  };
  std::vector<Entry> held_;
  std::vector<Entry> seen_;
};

}  // namespace cupool::cli
