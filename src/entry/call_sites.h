// SPDX-License-Identifier: Apache-2.0
// What is known of the code that calls a hook, by its return address, as long as that code stays in
// the process: one table for the runtime that it is linked to and for CUPOOL_BYPASS_LIBS.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/host/host_class.h"
#include "entry/bypass.h"
#include "entry/real_runtime.h"

namespace cupool::entry {

/// By the flags of a call for page-locked memory: the kind of memory (engine::host_kind()) that its
/// runtime has asked the driver for then. Thread-safe.
class HostKinds {
 public:
  /// kNoHostKind: not known.
  [[gnu::always_inline]] unsigned of(unsigned flags) const {
    return flags < kFlags ? in(word_.load(std::memory_order_relaxed), flags) : engine::kNoHostKind;
  }
  void learn(unsigned flags, unsigned kind) {
    if (flags >= kFlags) return;
    std::uint32_t word = word_.load(std::memory_order_relaxed);
    while (in(word, flags) == engine::kNoHostKind &&
           !word_.compare_exchange_weak(word, word | (engine::kNoHostKind - kind) << kBits * flags,
                                        std::memory_order_relaxed)) {
    }
  }
  void forget() { word_.store(0, std::memory_order_relaxed); }

 private:
  static constexpr unsigned kFlags = engine::kWriteCombined;
  static constexpr unsigned kBits = 4;
  static unsigned in(std::uint32_t word, unsigned flags) {
    return engine::kNoHostKind - (word >> kBits * flags & ((1u << kBits) - 1));
  }

  std::atomic<std::uint32_t> word_{0};
};

struct CallSiteFacts {
  /// A literal, compared by address: one call may reach several functions. Null: a function of the
  /// driver, whichever.
  const char* symbol = nullptr;
  RealRuntimeFunction real;  ///< of the caller's runtime; none for a function of the driver
  bool bypassed = false;     ///< its library is listed
  bool of_toolkit = false;   ///< its library is the toolkit's (entry/caller)

  /// Whether its runtime allows the short cut. From CUDA 12.0 on cudaSetDevice makes the device's
  /// context current at once, so that the driver's current context is the one that the real
  /// function would use. Before, it need not be.
  bool allows_short_cut() const { return real.runtime_version >= kEagerSetDevice; }
  static constexpr int kEagerSetDevice = 12000;
  /// The same, and it is not bypassed.
  bool has_short_cut = false;
  HostKinds* host_kinds = nullptr;  ///< of this call site; null: it is not in the table
};

namespace detail {

/// Written once for each call site. When its code has left the process it is free for another one:
/// a thread that still reads it would be one in the code that is gone.
class alignas(64) CallSite {
 public:
  bool is_of(const void* caller) const { return caller_.load(std::memory_order_acquire) == caller; }
  bool is_free() const { return is_of(nullptr); }
  /// False: another thread was first.
  bool take(const void* caller, const CallSiteFacts& what);
  /// Frees it if other code is at its address, or none.
  void review();

  CallSiteFacts facts;
  HostKinds host_kinds;

 private:
  std::atomic<const void*> caller_{nullptr};
  std::uint64_t object_ = 0;
};

inline constexpr unsigned kCallSitesLog2 = 10;
inline CallSite call_sites[std::size_t{1} << kCallSitesLog2];

[[gnu::always_inline]] inline std::size_t first_place_of(const void* caller) {
  const auto mixed = reinterpret_cast<std::uintptr_t>(caller) * std::uint64_t{0x9e3779b97f4a7c15};
  return mixed >> (64 - kCallSitesLog2);
}

}  // namespace detail

/// What is known of a call of `symbol` that returns to `caller`, if one look tells and the call is
/// no part of a bypassed one; else null. For the hot path.
[[gnu::always_inline]] inline const CallSiteFacts* known_at_once(const char* symbol,
                                                                 const void* caller) {
  const detail::CallSite& site = detail::call_sites[detail::first_place_of(caller)];
  const bool same = site.is_of(caller) && site.facts.symbol == symbol;
  return same && !in_bypassed_call() ? &site.facts : nullptr;
}

/// The same, found out where it is not known; within a bypassed call `bypassed` is true.
/// Thread-safe. Where the table is full each call is looked up: right, only slower.
CallSiteFacts facts_of(const char* symbol, const void* caller);

/// What is_bypassed() and the toolkit's libraries have in common: page-locked memory that they
/// allocate is their own affair, and the driver's.
bool is_of_its_own_otherwise(const void* caller);
[[gnu::always_inline]] inline bool is_of_its_own(const void* caller) {
  const CallSiteFacts* const known = known_at_once(nullptr, caller);
  return known != nullptr ? known->bypassed || known->of_toolkit : is_of_its_own_otherwise(caller);
}

/// is_bypassed() where one look does not tell.
bool is_bypassed_otherwise(const void* caller);

/// Whether the call that returns to `caller`, or the call of the runtime that it is part of, came
/// from a library of CUPOOL_BYPASS_LIBS. A few nanoseconds from the second call on. Thread-safe.
[[gnu::always_inline]] inline bool is_bypassed(const void* caller) {
  const CallSiteFacts* const known = known_at_once(nullptr, caller);
  return known != nullptr ? known->bypassed : is_bypassed_otherwise(caller);
}

/// Whether anything is known, and has to be reviewed when code leaves.
bool any_call_site();

/// Code has left the process: what was known of it is forgotten. Thread-safe.
void review_call_sites();

}  // namespace cupool::entry
