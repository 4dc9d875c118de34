// Where blocks come from and go back to: the driver's stream-ordered pools, or its cuMemAlloc.
#pragma once

#include <cstdint>

#include "core/block.h"

namespace cupool::core {

/// What another process needs to import a block of a pool.
struct SharedMemory {
  int pool_file = -1;      ///< stands for the pool; stays the backend's
  std::uint64_t pool = 0;  ///< number of the pool in this process
  CUmemPoolPtrExportData pointer{};
};

/// How far a preallocation in the background is: `waits` for a context that can be used.
enum class Preallocation { goes_on, waits, ended };

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

 protected:
  ~Backend() = default;
};

}  // namespace cupool::core
