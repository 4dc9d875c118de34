// SPDX-License-Identifier: Apache-2.0
// Memory reserved in advance: CUPOOL_PREALLOC bytes in the pool of large blocks, reserved at once
// or in slices.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "cuda/driver.h"
#include "engine/backend/backend.h"
#include "engine/backend/pool_device.h"
#include "util/lock_order.h"

namespace cupool::engine {

class PoolBackend;

/// One per pair of pools. Thread-safe.
class Preallocation {
 public:
  /// Progress in the background. `waits`: no context can be used yet.
  enum State { goes_on, waits, ended };

  Preallocation(const cuda::Driver& driver, const PoolDevice& device, PoolBackend& pools)
      : driver_(driver), device_(device), pools_(pools) {}

  /// Whether CUPOOL_PREALLOC is set and this is the first call.
  bool begin();
  /// Reserves all of it. `context` must be current.
  void reserve(StreamSource& context);
  /// Leaves the work to reserve_some(), which a background thread calls.
  void leave_for_later() { left_.store(true, std::memory_order_release); }
  bool is_left() const { return left_.load(std::memory_order_acquire); }
  State reserve_some(StreamSource& context);
  /// Ends the reservation and gives the reserved slices to the pool, because memory is needed.
  void end(StreamSource& context);
  /// Idle bytes held by reserve_some().
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  State reserve_slice(StreamSource& context);
  bool taken_by_program() const;

  const cuda::Driver& driver_;
  const PoolDevice device_;
  PoolBackend& pools_;
  std::atomic<bool> begun_{false};
  std::atomic<bool> left_{false};
  util::Ranked<util::LockRank::preallocation> mutex_;
  std::atomic<bool> ended_{false};  ///< set under the mutex
  BlockList slices_;                ///< allocated, so that the pool does not hand them out again
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace cupool::engine
