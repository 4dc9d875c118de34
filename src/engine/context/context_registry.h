// SPDX-License-Identifier: Apache-2.0
// The contexts and devices of the process, found by the driver's handles.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

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

class ContextRegistry;

/// Contexts of a registry, looked up one at a time, since a list of all would need host memory:
/// who has none left still frees, begins captures and ends contexts. One that comes meanwhile may
/// be among them. The pointers stay valid, as a context's record is never destroyed.
class ContextList {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Context*;
    using difference_type = std::ptrdiff_t;
    using pointer = Context* const*;
    using reference = Context*;

    Iterator() = default;  ///< the end
    explicit Iterator(const ContextList& list) : list_(&list) { ++*this; }
    Context* operator*() const { return context_; }
    Iterator& operator++() {
      context_ = list_->next_behind(&handle_);
      return *this;
    }
    bool operator==(const Iterator& other) const { return context_ == other.context_; }
    bool operator!=(const Iterator& other) const { return !(*this == other); }

   private:
    const ContextList* list_ = nullptr;
    CUcontext handle_ = nullptr;
    Context* context_ = nullptr;
  };

  /// Those of `device` that are not gone; std::nullopt: all.
  ContextList(ContextRegistry& registry, std::optional<int> device)
      : registry_(registry), device_(device) {}

  Iterator begin() const { return Iterator(*this); }
  Iterator end() const { return {}; }
  bool empty() const { return begin() == end(); }

 private:
  // The first one behind `*handle`, which is then its own. Null: none.
  Context* next_behind(CUcontext* handle) const;

  ContextRegistry& registry_;
  const std::optional<int> device_;
};

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
  ContextList contexts_of(int device) { return {*this, device}; }

  /// The living context with this handle, else null. One that is not known, or whose handle may
  /// belong to another one by now, is made current to identify it.
  Context* find_living(CUcontext of_stream);

  /// All known contexts, including gone ones, until dropped.
  ContextList all() { return {*this, std::nullopt}; }

  Devices& devices() { return devices_; }

  /// Whether the memory at `address` belongs to cupool: it outlived its context (see Device), or is
  /// a barrier (see Ordering). Allocates nothing.
  bool is_internal(CUdeviceptr address);

  /// Called when a context is about to end, so that threads look their contexts up again.
  void forget_found();

  /// The context is gone; its handle, if seen again, belongs to another context.
  void drop(const Context& context);

 private:
  friend class ContextList;
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
