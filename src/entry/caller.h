// SPDX-License-Identifier: Apache-2.0
// The caller of a hook: the program, or a library of the CUDA toolkit on its own behalf.
#pragma once

#include <cstdint>

namespace cupool::entry {

/// Whether the code at `address` (a return address) belongs to a library of the CUDA toolkit other
/// than the driver and the runtime: cuBLAS, cuDNN, NCCL, ... They contain their own runtime, so
/// their calls come from themselves. Host memory that they map for their kernels is internal: no
/// program relies on a free of device memory to wait for it. Thread-safe.
bool is_cuda_library(const void* address);

/// An identity of the object that contains the code at `address`, different from earlier and later
/// objects there; 0: no object. Cached facts of a call site are valid while it stays the same.
/// Thread-safe.
std::uint64_t object_id(const void* address);

/// The file name of the object that contains the code at `address`; "?" if there is none.
const char* object_of(const void* address);

/// Whether `address` is in cupool's own library. Asks the dynamic linker. Thread-safe.
bool is_own_code(const void* address);

}  // namespace cupool::entry
