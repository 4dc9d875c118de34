// SPDX-License-Identifier: Apache-2.0
// A network of the test's own: neighbours are found by it, and other tests' processes may be
// stopped, or end, just when they are asked.
#pragma once

#include <sched.h>

namespace cupool::test {

/// False: no such network can be made here.
inline bool leave_network() {
  static const bool left = unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
  return left;
}

}  // namespace cupool::test
