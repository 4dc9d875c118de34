// SPDX-License-Identifier: Apache-2.0
// The driver's figures of one pool. A refusal may pass, so each query is tried twice. Without the
// figures, the free memory reported to the program would be too low (contract 5).
#pragma once

#include <cstdint>

#include "cuda/driver.h"

namespace cupool::engine {

/// Adds an attribute to `*sum`. False: the driver does not say.
inline bool add_attribute(const cuda::Driver& driver, CUmemoryPool pool,
                          CUmemPool_attribute attribute, std::uint64_t* sum) {
  cuuint64_t value = 0;
  if (driver.cuMemPoolGetAttribute(pool, attribute, &value) != CUDA_SUCCESS &&
      driver.cuMemPoolGetAttribute(pool, attribute, &value) != CUDA_SUCCESS) {
    return false;
  }
  *sum += value;
  return true;
}

/// Device bytes reserved by the pool; 0 if the driver does not say.
inline std::uint64_t reserved_bytes(const cuda::Driver& driver, CUmemoryPool pool) {
  std::uint64_t bytes = 0;
  add_attribute(driver, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  return bytes;
}

/// Allocated bytes of the pool; 0 if the driver does not say.
inline std::uint64_t used_bytes(const cuda::Driver& driver, CUmemoryPool pool) {
  std::uint64_t bytes = 0;
  add_attribute(driver, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
  return bytes;
}

}  // namespace cupool::engine
