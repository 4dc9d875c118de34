// SPDX-License-Identifier: Apache-2.0
// Free device memory, as the program sees it (contract 5).
#pragma once

#include <cuda_runtime_api.h>

#include "probe.h"

namespace probe {

inline size_t free_memory() {
  size_t available = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&available, &total));
  CHECK(available <= total);
  return available;
}

}  // namespace probe
