// SPDX-License-Identifier: Apache-2.0
// The program's attachments to contexts (contract 10): a detach beyond them destroys the context.
#pragma once

#include <map>
#include <mutex>

#include "cuda/driver.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// How often the program has attached to each context and not detached. Thread-safe.
class Attachments {
 public:
  /// The process's. Never destroyed.
  static Attachments& of_process();

  /// The program has attached to a context.
  void add(CUcontext context);

  /// Whether an attachment is left. If not, a detach destroys the context.
  bool any(CUcontext context);

  /// The program has detached from a context.
  void remove(CUcontext context);

  /// The context is gone, and its handle may be reused.
  void forget(CUcontext context);

 private:
  util::Ranked<util::LockRank::attachments> mutex_;
  std::map<CUcontext, unsigned> counts_;
};

}  // namespace cupool::engine
