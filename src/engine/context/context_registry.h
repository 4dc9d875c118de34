// SPDX-License-Identifier: Apache-2.0
// The contexts and devices of the process, found by the driver's handles.
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "config/settings.h"
#include "cuda/driver.h"
#include "engine/context/context.h"
#include "engine/context/devices.h"
#include "util/lock_order.h"

namespace cupool::engine {

namespace detail {
/// The context in which the thread was last found.
struct LastFound {
  CUcontext handle;
  Context* context;
  std::uint64_t generation;
  bool is_current;  ///< by the hooks, the current context has not changed since
};
inline thread_local LastFound last_found{};
}  // namespace detail

/// Thread-safe. A thread that stays in one context finds it without a lock.
class ContextRegistry {
 public:
  ContextRegistry(const cuda::Driver& driver, const config::Settings& settings)
      : driver_(driver), devices_(driver, settings) {}

  /// The calling thread's current context. Null: it has none, or it cannot be served. The driver is
  /// not asked unless a hooked function may have changed the current context.
  Context* current() {
    Context* const known = known_current();
    return known != nullptr ? known : look_at_current();
  }

  /// As current(), without asking the driver. Null: not known, or none.
  [[gnu::always_inline]] Context* known_current() const {
    const detail::LastFound& last = detail::last_found;
    const bool known =
        last.is_current && last.generation == generation_.load(std::memory_order_acquire);
    return known ? last.context : nullptr;
  }

  /// As current(), from the driver. `known`: the result of current(). If the driver's answer
  /// differs, the context was changed in a way that the hooks do not see, and the driver is always
  /// asked from then on.
  Context* ask_for_current(Context& known);

  /// The current context, confirmed by the driver. A synchronisation may complete the epochs of its
  /// own context only.
  Context* current_for_certain() {
    Context* const known = current();
    return known == nullptr ? nullptr : ask_for_current(*known);
  }

  /// The driver may shut down at any time from now on, so it is asked each time.
  void distrust_hooks();

  /// Called before and after every driver function that may change the calling thread's current
  /// context.
  static void current_may_change() { detail::last_found.is_current = false; }

  /// The known context with this handle, else null. Never creates one.
  Context* find(CUcontext handle);

  /// The contexts of a device that are not gone.
  std::vector<Context*> contexts_of(int device);

  /// The living context with this handle, else null. One that is not known, or whose handle may
  /// belong to another one by now, is made current to identify it.
  Context* find_living(CUcontext of_stream);

  /// All known contexts, including gone ones, until dropped.
  std::vector<Context*> all();

  Devices& devices() { return devices_; }

  /// Whether the memory at `address` belongs to cupool: it outlived its context (see Device), or is
  /// a barrier (see Ordering). Allocates nothing.
  bool is_internal(CUdeviceptr address);

  /// Called when a context is about to end, so that threads look their contexts up again.
  void forget_found();

  /// The context is gone; its handle, if seen again, belongs to another context.
  void drop(const Context& context);

 private:
  Context* find_or_create(CUcontext current);
  Context* find_or_create_locked(CUcontext handle, int ordinal);
  Context* other_of_handle(CUcontext handle, Device& device);
  void keep_ended(Context& context);
  Context* look_at_current();
  Context* next_behind(CUcontext* handle);

  const cuda::Driver& driver_;
  Devices devices_;
  util::Ranked<util::LockRank::context_registry> mutex_;
  std::map<CUcontext, Context*> contexts_;
  /// Contexts that have ended, and whose handle has come again on another device, by handle and
  /// ordinal. It may come again on theirs.
  std::map<std::pair<CUcontext, int>, Context*> ended_;
  std::atomic<std::uint64_t> generation_{1};
  std::atomic<bool> trusts_hooks_{true};
};

}  // namespace cupool::engine
