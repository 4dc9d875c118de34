// SPDX-License-Identifier: Apache-2.0
// Programs one after another in the life of one process, and whether anything grows meanwhile.
#pragma once

#include <cstdint>

namespace cupool::property {

class Machine;

struct Soak {
  std::uint64_t first = 1;  ///< seed of the first program
  unsigned seconds = 0;
  /// Not 0: as many programs, five times in the same order, instead of new ones for `seconds`. The
  /// first round warms up.
  std::uint64_t in_rounds = 0;
  bool one_context = false;  ///< page-locked memory is served to such a process alone
};

/// In the process under the library. Exit status 1: something grew, or a program failed; 2: too few
/// programs ran to tell.
int run_soak(const Soak& soak, Machine& machine);

}  // namespace cupool::property
