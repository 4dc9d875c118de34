// SPDX-License-Identifier: Apache-2.0
// Replaces the atomics, locks, clock and yields of the engine's headers and sources that are
// included behind it by those of the explorer, so that the shipped code itself is explored. To be
// included first. Everything of other libraries that those files use is included here, as it is.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "explorer.h"
#include "util/clock.h"

// NOLINTBEGIN: these are the names of the standard library, on purpose.
namespace std {

template <typename T>
class explored_atomic {
 public:
  explored_atomic() noexcept : explored_atomic(T{}) {}
  explored_atomic(T value) noexcept : cell_(word_of(value)) {}
  explored_atomic(const explored_atomic&) = delete;
  explored_atomic& operator=(const explored_atomic&) = delete;

  T load(memory_order order = memory_order_seq_cst,
         explorer::Site site = explorer::Site::here()) const {
    return value_of(explorer::load(cell_, order, site));
  }
  void store(T value, memory_order order = memory_order_seq_cst,
             explorer::Site site = explorer::Site::here()) {
    explorer::store(cell_, word_of(value), order, site);
  }
  T exchange(T value, memory_order order = memory_order_seq_cst,
             explorer::Site site = explorer::Site::here()) {
    return change([&](T) { return value; }, order, site);
  }
  bool compare_exchange_strong(T& expected, T desired, memory_order success, memory_order failure,
                               explorer::Site site = explorer::Site::here()) {
    std::uint64_t seen = word_of(expected);
    const bool done =
        explorer::compare_exchange(cell_, &seen, word_of(desired), success, failure, site);
    expected = value_of(seen);
    return done;
  }
  bool compare_exchange_strong(T& expected, T desired, memory_order order = memory_order_seq_cst,
                               explorer::Site site = explorer::Site::here()) {
    const memory_order failure = order == memory_order_acq_rel   ? memory_order_acquire
                                 : order == memory_order_release ? memory_order_relaxed
                                                                 : order;
    return compare_exchange_strong(expected, desired, order, failure, site);
  }
  bool compare_exchange_weak(T& expected, T desired, memory_order success, memory_order failure,
                             explorer::Site site = explorer::Site::here()) {
    return compare_exchange_strong(expected, desired, success, failure, site);
  }
  bool compare_exchange_weak(T& expected, T desired, memory_order order = memory_order_seq_cst,
                             explorer::Site site = explorer::Site::here()) {
    return compare_exchange_strong(expected, desired, order, site);
  }
  T fetch_add(T value, memory_order order = memory_order_seq_cst,
              explorer::Site site = explorer::Site::here()) {
    return change([&](T seen) { return static_cast<T>(seen + value); }, order, site);
  }
  T fetch_sub(T value, memory_order order = memory_order_seq_cst,
              explorer::Site site = explorer::Site::here()) {
    return change([&](T seen) { return static_cast<T>(seen - value); }, order, site);
  }
  T fetch_or(T value, memory_order order = memory_order_seq_cst,
             explorer::Site site = explorer::Site::here()) {
    return change([&](T seen) { return static_cast<T>(seen | value); }, order, site);
  }
  T fetch_and(T value, memory_order order = memory_order_seq_cst,
              explorer::Site site = explorer::Site::here()) {
    return change([&](T seen) { return static_cast<T>(seen & value); }, order, site);
  }
  T operator=(T value) {
    store(value);
    return value;
  }
  operator T() const { return load(); }

 private:
  static_assert(sizeof(T) <= 8 && is_trivially_copyable_v<T>);
  static std::uint64_t word_of(T value) {
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    return word;
  }
  static T value_of(std::uint64_t word) {
    T value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  template <typename Change>
  T change(const Change& change, memory_order order, explorer::Site site) {
    return value_of(explorer::modify(
        cell_, [&](std::uint64_t seen) { return word_of(change(value_of(seen))); }, order, site));
  }
  mutable explorer::Cell cell_;
};

class explored_mutex {
 public:
  void lock() { explorer::lock(cell_); }
  bool try_lock() { return explorer::try_lock(cell_); }
  void unlock() { explorer::unlock(cell_); }

 private:
  explorer::Cell cell_;
};

inline void explored_fence(memory_order order, explorer::Site site = explorer::Site::here()) {
  explorer::fence(order, site);
}

}  // namespace std

inline int explored_yield() {
  explorer::spin();
  return 0;
}
inline int explored_sleep(const timespec*, timespec*) {
  explorer::spin();
  return 0;
}
namespace cupool::util {
inline std::uint64_t explored_now_ns() {
  return explorer::now_ns();
}
}  // namespace cupool::util

#define atomic explored_atomic
#define mutex explored_mutex
#define atomic_thread_fence explored_fence
#define sched_yield explored_yield
#define __builtin_ia32_pause explorer::spin
#define nanosleep explored_sleep
#define now_ns explored_now_ns
// NOLINTEND
