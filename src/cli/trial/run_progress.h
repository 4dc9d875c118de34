// SPDX-License-Identifier: Apache-2.0
// Progress of runs that follow one another, for a terminal: "run 3 of 6, with cupool, 12 s left".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/shell/terminal.h"

namespace cupool::cli {

/// The runs in their order, and how long those behind took.
struct RunPlan {
  std::vector<std::string> names;      ///< of the ways
  std::vector<std::size_t> order;      ///< the way of each run
  std::vector<std::uint64_t> took_ns;  ///< of each run that has ended

  /// The run after those that have ended. A way that has not run yet is taken to need what others
  /// need; before any end there is only the time so far. Requires that a run is left. Pure.
  std::string text(std::uint64_t elapsed_ns) const;
};

/// Shows it. Does nothing if standard error is no terminal.
class RunProgress {
 public:
  RunProgress(std::vector<std::string> names, std::vector<std::size_t> order);

  /// Whether tick() is worth to be called while a run lasts.
  bool is_shown() const { return progress_.is_shown(); }
  /// The next run begins.
  void begin();
  /// It lasts.
  void tick();
  /// It has ended.
  void end();

 private:
  RunPlan plan_;
  std::uint64_t began_ns_ = 0;
  Progress progress_;
};

}  // namespace cupool::cli
