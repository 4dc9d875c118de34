// Libraries whose own allocations stay the driver's (CUPOOL_BYPASS_LIBS): those that register
// device memory with network or storage hardware, or hand it to processes that run without cupool.
#pragma once

namespace cupool::entry {

/// Whether the call that returns to `caller`, or the call of the runtime that it is part of, came
/// from such a library. A few nanoseconds from the second call on. Thread-safe.
bool is_bypassed(const void* caller);

/// Around the real function of the runtime, when its caller is to be bypassed: the driver hooks
/// would see libcudart as theirs.
class BypassScope {
 public:
  explicit BypassScope(bool bypass);
  ~BypassScope();
  BypassScope(const BypassScope&) = delete;
  BypassScope& operator=(const BypassScope&) = delete;

 private:
  const bool before_;
};

}  // namespace cupool::entry
