// SPDX-License-Identifier: Apache-2.0
// Page-locked memory of the program, by host address. A kernel may be given such an address as it
// is, without a device pointer: then it touches host memory, and a free waits for it (contract 2).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/driver.h"

namespace cupool::engine {

/// One table for the process. Thread-safe; may be called before the rest of cupool has started.
///
/// Ranges never overlap. What goes with its context stays on record until its bytes are page-locked
/// again.
class PinnedMemory {
 public:
  /// The program has page-locked these bytes. What was known of them before is over. Returns the
  /// number of the new range, which no other one gets. 0: there is no host memory for it, and any
  /// word may be an address in such memory from now on.
  static std::uint64_t add(const void* start, std::size_t bytes);
  /// The same, of memory that is its own (cuMemHostRegister).
  static void add_registered(const void* start, std::size_t bytes);
  /// The number of the range that begins at `start`; 0: none does.
  static std::uint64_t number_of(const void* start);
  /// The driver has taken the memory of the range with this number back. By now the address may be
  /// another owner's, whose range stays.
  static void remove(const void* start, std::uint64_t number);
  /// The driver was asked to take that memory back. remove(), if it is `taken`.
  static void was_asked_for(const void* start, std::uint64_t number, bool taken);

  /// In a forked child, or when a signal handler leaves: there is none, and nothing takes the lock,
  /// which may be held for ever.
  static void end_without_lock();
  /// For tests: as at the start of the process.
  static void reset();
  /// Whether there is any. One load.
  static bool any() { return count_.load(std::memory_order_relaxed) != 0; }
  /// Whether `address` lies in it.
  static bool holds(std::uintptr_t address) { return start_of(address) != 0; }
  /// Whether it may lie in page-locked memory, in the table or not.
  static bool may_hold(std::uintptr_t address) {
    return any() && (unknown_.load(std::memory_order_relaxed) || holds(address));
  }
  /// There is host memory that is not in the table: of a pool, mapped by the program, or another
  /// process's. Any word may be an address in it from now on. True: for the first time.
  static bool is_elsewhere();
  /// The begin of the memory in which `address` lies; 0: it lies in none.
  static std::uintptr_t start_of(std::uintptr_t address) {
    return start_of(address, Count::its_bytes);
  }

  /// Whether one of the words that a kernel is launched with lies in it, or is its end.
  /// `parameters` and `extra` are those of cuLaunchKernel. What a kernel finds by a pointer in
  /// memory is not seen.
  static bool is_argument(const cuda::Driver& driver, CUfunction function, void** parameters,
                          void** extra);

 private:
  enum class Count { its_bytes, the_end_too };
  static std::uintptr_t start_of(std::uintptr_t address, Count count);
  static void publish_locked();
  static bool holds_word_of(const void* bytes, std::size_t size);

  static std::atomic<bool> over_;
  static std::atomic<bool> unknown_;  ///< some memory is not in the table
  static std::atomic<std::size_t> count_;
  // The span of all memory that there ever was: most words lie outside.
  static std::atomic<std::uintptr_t> lowest_;
  static std::atomic<std::uintptr_t> highest_;
};

}  // namespace cupool::engine
