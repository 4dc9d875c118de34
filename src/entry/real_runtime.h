// SPDX-License-Identifier: Apache-2.0
// The real functions of libcudart behind cupool's short cuts. A process may have several runtimes,
// some in the local scope of a plugin; the one that the caller is linked to counts.
#pragma once

namespace cupool::entry {

struct RealRuntimeFunction {
  void* function = nullptr;
  int runtime_version = 0;  ///< of cudaRuntimeGetVersion; 12000 is CUDA 12.0
};

/// The function `name` of the runtime that the code at `caller` (a return address) is linked to;
/// function is null if there is none. Asks the dynamic linker: see call_sites.h. Thread-safe.
RealRuntimeFunction resolve_runtime_function(const char* name, const void* caller);

}  // namespace cupool::entry
