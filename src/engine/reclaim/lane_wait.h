// SPDX-License-Identifier: Apache-2.0
// Waits for the frees in a lane so far, while the process is in it or was. On the device: an event
// of another stream, which others may wait for, comes behind them. On the host: the mark of the
// lane moves on with the frees of other threads, so one that waits for it might wait for as long as
// they go on. An event behind all work of the lane's stream stays where it is. It also covers work
// that no free follows, and so only whichever of the two is complete first ends the wait.
#pragma once

#include "cuda/driver.h"

namespace cupool::engine {

/// For one thread and one wait. The calls between its begin and its end may be far apart.
class LaneWait {
 public:
  explicit LaneWait(const cuda::Driver& driver) : driver_(driver) {}
  ~LaneWait();
  LaneWait(const LaneWait&) = delete;
  LaneWait& operator=(const LaneWait&) = delete;

  /// Whether the work before every free in the lane is complete that was made before the first
  /// call.
  bool is_complete();

 private:
  void record();

  const cuda::Driver& driver_;
  CUevent event_ = nullptr;
  bool recorded_ = false;
  bool refused_ = false;
};

/// Before the program records an event in `stream`, another one than the lane's, and behind a free.
void order_event(const cuda::Driver& driver, CUstream stream);

}  // namespace cupool::engine
