// SPDX-License-Identifier: Apache-2.0
// The program's attachments to contexts (contract 10): a detach beyond them destroys the context.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <vector>

#include "cuda/driver.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// How often the program has attached to each context and not detached. Thread-safe. Needs no host
/// memory for kUsual contexts at once: an attachment that is not counted would have a detach taken
/// for the context's end.
class Attachments {
 public:
  /// The process's. Never destroyed.
  static Attachments& of_process();

  /// The program has attached to a context.
  void add(CUcontext context);

  /// Whether an attachment is left, or may be. If not, a detach destroys the context.
  bool any(CUcontext context);

  /// The program has detached from a context.
  void remove(CUcontext context);

  /// The context is gone, and its handle may be reused.
  void forget(CUcontext context);

  static constexpr std::size_t kUsual = 64;

 private:
  struct Count {
    CUcontext context = nullptr;
    unsigned attachments = 0;  ///< 0: an unused place
  };
  template <typename Is>
  Count* find_locked(const Is& is);
  Count* of_locked(CUcontext context);

  util::Ranked<util::LockRank::attachments> mutex_;
  std::array<Count, kUsual> counts_;
  std::vector<Count> more_;
  bool uncounted_ = false;  ///< there was no host memory for one
};

}  // namespace cupool::engine
