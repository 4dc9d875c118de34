// What allocation hooks do where no engine runs: the real call, measured in CUPOOL_MODE=observe.
// Only reached on the branch without an engine, so the engine's path pays nothing for it.
#pragma once

#include "process/lifecycle.h"

namespace cupool::entry {

template <typename Bytes, typename Call>
CUresult observed_allocation(const Bytes& bytes, const CUdeviceptr* address, const Call& real) {
  core::Observer* observer = process::observer();
  return observer == nullptr ? real() : observer->allocate(bytes, address, real);
}

template <typename Call>
CUresult observed_free(CUdeviceptr address, const Call& real) {
  core::Observer* observer = process::observer();
  return observer == nullptr ? real() : observer->free(address, real);
}

}  // namespace cupool::entry
