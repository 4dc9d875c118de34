// SPDX-License-Identifier: Apache-2.0
// Libraries whose own allocations stay the driver's (CUPOOL_BYPASS_LIBS): they register device
// memory with network or storage hardware, or share it with processes without cupool.
#pragma once

namespace cupool::entry {

/// Whether the code at `caller` (a return address) is such a library's. Takes microseconds; see
/// call_sites.h. Thread-safe.
bool is_in_listed_library(const void* caller);

namespace detail {
inline thread_local unsigned bypassed_calls = 0;
}

/// Whether the thread is inside a call of the runtime that comes from such a library: all calls of
/// the driver are bypassed then.
inline bool in_bypassed_call() {
  return detail::bypassed_calls != 0;
}

/// Around the real function of the runtime for a bypassed caller: the driver hooks would see
/// libcudart as the caller.
class BypassScope {
 public:
  explicit BypassScope(bool bypass) : bypass_(bypass) { detail::bypassed_calls += bypass_; }
  ~BypassScope() { detail::bypassed_calls -= bypass_; }
  BypassScope(const BypassScope&) = delete;
  BypassScope& operator=(const BypassScope&) = delete;

 private:
  const unsigned bypass_;
};

}  // namespace cupool::entry
