// SPDX-License-Identifier: Apache-2.0
// Stream-ordered frees on a stream of another context. The context's own fences do not cover the
// pending work of that stream, so a stream of cupool in the context waits for it.
#pragma once

#include <mutex>

#include "cuda/driver.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// One per context. Thread-safe. Holds its lock across driver calls that do not wait for the GPU
/// (I4).
class ForeignStreams {
 public:
  ForeignStreams(const cuda::Driver& driver, CUcontext context)
      : driver_(driver), context_(context) {}

  /// Orders every later fence of the context behind the present work of `stream`, of whatever
  /// context, and has the free be an operation of that stream. A default stream means that of the
  /// calling thread's current context. `stream` must not capture. If the driver refuses the order,
  /// waits for the stream, and for what that free would be behind. False: not ordered.
  bool order_behind(CUstream stream);

  /// The context is gone, with the stream created here.
  void clear();

 private:
  bool context_of(CUstream stream, CUcontext* other) const;
  bool is_alone(CUstream stream) const;
  bool stand_for_free(CUstream stream) const;
  void wait_for_legacy(CUcontext context) const;
  bool wait_in_own(CUstream stream, CUevent event, CUcontext context) const;
  CUevent record(CUstream stream, CUcontext context) const;
  bool queue_wait(CUstream stream, CUcontext other);
  bool wait_for(CUevent event);

  const cuda::Driver& driver_;
  const CUcontext context_;
  util::Ranked<util::LockRank::foreign_streams> mutex_;
  /// Only waits run on it; streams for pool memory never wait (I2). Null until needed.
  CUstream waiting_ = nullptr;
};

}  // namespace cupool::engine
