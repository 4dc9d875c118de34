// Where blocks come from and go back to: the driver's stream-ordered pools, or its cuMemAlloc.
#pragma once

#include <cstdint>

#include "core/block.h"
#include "stats/device_stats.h"

namespace cupool::core {

/// One for each device. Thread-safe. Calls leave the thread's capture mode and current context as
/// they were, and never break a capture.
class Backend {
 public:
  virtual BlockSource source() const = 0;

  /// `capacity` bytes that every stream may use at once (I2). `context` is current.
  virtual CUresult allocate(Context& context, std::uint64_t capacity, CUdeviceptr* address) = 0;

  /// Gives the memory of quiet blocks back; `context` is made current for it. False if the driver
  /// refused one (the context is gone): its memory is the driver's to find.
  virtual bool release(Context& context, CUdeviceptr address) = 0;

  /// Gives idle memory back to the device, as much as the driver can.
  virtual void trim(Context& context) = 0;

  /// What the driver says of the pools; not valid where there are none. Never waits.
  virtual stats::PoolFigures figures() const = 0;

 protected:
  ~Backend() = default;
};

}  // namespace cupool::core
