// The real functions of libcudart behind our exported short cuts. A process may hold several
// runtimes, some in the local scope of a plugin: what counts is which one the caller is linked to.
#pragma once

namespace cupool::entry {

struct RealRuntimeFunction {
  void* function = nullptr;
  int runtime_version = 0;  ///< as cudaRuntimeGetVersion says it; 12000 is CUDA 12.0
};

/// The function `name` of the runtime that the code at `caller` (a return address) is linked to;
/// function is null if there is none. `name` must be a string literal: it is compared by address.
/// Thread-safe; found once for each call site.
RealRuntimeFunction real_runtime_function(const char* name, const void* caller);

}  // namespace cupool::entry
