// SPDX-License-Identifier: Apache-2.0
// Calls in a host function of the program, where the driver permits none.
#pragma once

#include "cuda/driver.h"

namespace cupool::engine {

namespace detail {
/// This thread is not a driver thread that runs the program's host functions.
inline thread_local bool runs_no_host_functions = false;
}  // namespace detail

/// Whether the calling thread is known to run none. One load.
inline bool runs_no_host_functions() {
  return detail::runs_no_host_functions;
}

/// The driver's answer to a call of the thread, if it is in a host function; else success.
CUresult refusal_in_host_function(const cuda::Driver& driver);

}  // namespace cupool::engine
