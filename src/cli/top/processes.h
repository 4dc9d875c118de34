// SPDX-License-Identifier: Apache-2.0
// The processes of this user under cupool, and what each tells of itself (docs/design.md,
// Neighbours).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "stats/live_figures.h"

namespace cupool::cli {

struct LiveProcess {
  enum class State {
    told,
    no_pools,       ///< has no channel
    silent,         ///< has not answered in time
    other_version,  ///< of cupool
  };

  pid_t pid = 0;  ///< 0: in a namespace that is not seen from here
  State state = State::no_pools;
  std::string command;         ///< program and arguments
  stats::LiveFigures figures;  ///< if told
  stats::LiveDevice all;       ///< the sum over its devices

  bool told() const { return state == State::told; }
};

/// Asks every process once, and waits half a second at most. Largest reserved memory first.
std::vector<LiveProcess> live_processes();

/// Throws UsageError if there is no such process, if it is another user's, or not under cupool.
void require_under_cupool(pid_t pid);

/// Whether the process has ended.
bool has_ended(pid_t pid);

}  // namespace cupool::cli
