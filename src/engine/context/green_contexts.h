// SPDX-License-Identifier: Apache-2.0
// Green contexts, as far as contexts are told by their handle (contract 10). Each has a handle of
// its own as a context (cuCtxFromGreenCtx), but its memory is that of the device's primary context,
// which it keeps alive (cuda.h, cuGreenCtxCreate).
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include "cuda/driver.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// The green contexts that the program has made by hooked calls and not ended. Thread-safe.
class GreenContexts {
 public:
  struct Green {
    CUcontext handle;   ///< as a context; null: ended with the primary one
    CUcontext primary;  ///< of the device
    CUdevice device;
  };

  /// The process's. Never destroyed.
  static GreenContexts& of_process();

  /// `green` has been made. False: no host memory, so it is not known.
  bool add(void* green, const Green& made) noexcept;

  /// What is known of `green`.
  std::optional<Green> find(void* green);

  /// The primary context has ended, and its green ones with it: their handles as contexts may come
  /// again.
  void primary_ended(CUcontext primary);

  /// Nothing is known of `green` any more: it is about to end, and its handles may come again.
  void remove(void* green);

  /// The primary context of a green one with this handle as a context; any other handle, and null,
  /// as it is.
  CUcontext primary_of(CUcontext handle) {
    return count_.load(std::memory_order_relaxed) == 0 ? handle : look_up(handle);
  }

 private:
  CUcontext look_up(CUcontext handle);

  util::Ranked<util::LockRank::green_contexts> mutex_;
  std::map<void*, Green> all_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace cupool::engine
