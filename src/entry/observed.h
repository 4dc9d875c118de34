// SPDX-License-Identifier: Apache-2.0
// Allocation hooks without an engine: the real call, measured in CUPOOL_MODE=observe. Only on the
// branch without an engine, at no cost for the engine's path.
#pragma once

#include "process/lifecycle.h"

namespace cupool::entry {

template <typename Bytes, typename Call>
CUresult observed_allocation(const Bytes& bytes, const CUdeviceptr* address, const Call& real) {
  observe::Observer* observer = process::observer();
  return observer == nullptr ? real() : observer->allocate(bytes, address, real);
}

template <typename Call>
CUresult observed_free(CUdeviceptr address, const Call& real) {
  observe::Observer* observer = process::observer();
  return observer == nullptr ? real() : observer->free(address, real);
}

}  // namespace cupool::entry
