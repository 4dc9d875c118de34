// SPDX-License-Identifier: Apache-2.0
// Samples how memory divides when more of it is taken from a device than ever (docs/design.md, Peak
// use).
#pragma once

#include <cstdint>

#include "engine/context/context_registry.h"
#include "stats/peak_use.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// Thread-safe.
class PeakSampler {
 public:
  explicit PeakSampler(ContextRegistry& registry) : registry_(registry) {}

  /// After a fresh block of `context` became live: takes a sample if the highest use is reached.
  /// Does not wait for the GPU.
  void look(Context& context);

 private:
  void sample(Context& context, stats::PeakUseRecord& record, bool is_new_peak);
  void fold_all(const Device& device);

  ContextRegistry& registry_;
  util::Ranked<util::LockRank::peak_use> mutex_;  ///< of one who samples
};

}  // namespace cupool::engine
