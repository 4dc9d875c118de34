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
class PinnedMemory {
 public:
  /// The program has page-locked these bytes.
  static void add(const void* start, std::size_t bytes);
  /// The same, of memory that is its own (cuMemHostRegister).
  static void add_registered(const void* start, std::size_t bytes);
  /// The program is about to give them back. Returns their number; 0: the memory is not known.
  static std::size_t remove(const void* start);
  /// The driver has refused to take back what remove() had `bytes` of. No effect for 0.
  static void put_back(const void* start, std::size_t bytes);
  /// In a forked child, or when a signal handler leaves: there is none, and nothing takes the lock,
  /// which may be held for ever.
  static void end_without_lock();
  /// Whether there is any. One load.
  static bool any() { return count_.load(std::memory_order_relaxed) != 0; }
  /// Whether `address` lies in it.
  static bool holds(std::uintptr_t address) { return start_of(address) != 0; }
  /// The begin of the memory in which `address` lies; 0: it lies in none.
  static std::uintptr_t start_of(std::uintptr_t address);

  /// Whether one of the words that a kernel is launched with lies in it. `parameters` and `extra`
  /// are those of cuLaunchKernel. What a kernel finds by a pointer in memory is not seen.
  static bool is_argument(const cuda::Driver& driver, CUfunction function, void** parameters,
                          void** extra);

 private:
  static bool holds_word_of(const void* bytes, std::size_t size);

  static std::atomic<bool> over_;
  static std::atomic<std::size_t> count_;
  // The span of all memory that there ever was: most words lie outside.
  static std::atomic<std::uintptr_t> lowest_;
  static std::atomic<std::uintptr_t> highest_;
};

}  // namespace cupool::engine
