// SPDX-License-Identifier: Apache-2.0
// What the order of a thread's frees needs of a context, without all else of one: in place of the
// engine's header where that order is explored alone. The context does not end.
#pragma once

#include <cstdint>

#include "cuda/driver.h"
#include "engine/context/context_visit.h"
#include "engine/context/points.h"
#include "stats/device_stats.h"

namespace cupool::engine {

class Context {
 public:
  explicit Context(CUcontext handle) : handle_(handle) {}
  CUcontext handle() const { return handle_; }
  bool gone() const { return false; }
  std::uint64_t incarnation() const { return 1; }
  stats::DeviceStats& stats() { return stats_; }
  Context& threads() { return *this; }
  ContextPoints& points() { return points_; }

 private:
  const CUcontext handle_;
  stats::DeviceStats stats_;
  ContextPoints points_;
};

}  // namespace cupool::engine
