// SPDX-License-Identifier: Apache-2.0
// The driver's functions as this runtime found them.
#pragma once

#include <cuda.h>
#include <cudaProfiler.h>
#include <cuda_runtime_api.h>

namespace cupool::sim::runtime {

struct Driver {
#define DRIVER_FUNCTION(symbol, base, since, per_thread) decltype(&::symbol) symbol = nullptr;
#include "runtime/driver_functions.def"
#undef DRIVER_FUNCTION
  cudaError_t state = cudaErrorInitializationError;  ///< cudaSuccess once it can be used
  decltype(&::cuGetProcAddress_v2) get_proc_address = nullptr;
};

/// Loads and initialises the driver on first use.
const Driver& driver();

}  // namespace cupool::sim::runtime
