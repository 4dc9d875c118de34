// SPDX-License-Identifier: Apache-2.0
// What the program has of each device's primary context (contract 10): references, and the handle.
// Kept from the first hooked call on, which may come before the engine starts.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "cuda/driver.h"
#include "stats/device_stats.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// The primary contexts of all devices. Thread-safe but for what says otherwise. A device whose
/// ordinal is not below stats::kMaxDevices shares its count with all others like it, and its handle
/// is not known.
class PrimaryContexts {
 public:
  using Lock = std::unique_lock<util::Ranked<util::LockRank::primary_context>>;

  /// The process's. Never destroyed.
  static PrimaryContexts& of_process();

  /// To be held around the driver's calls that retain, release or reset the context of `device`, so
  /// that what they did can be told: the context that one thread's release ends is not another one
  /// by the time that this is asked. Not to be taken in a forked child, where it may be held for
  /// ever.
  Lock lock(CUdevice device) { return Lock(uses_of(device).mutex); }

  /// Makes the driver's call that retains the context and writes its handle to `*context`. To be
  /// called under the lock, if there is one.
  template <typename Call>
  CUresult retain(CUdevice device, const CUcontext* context, const Call& call) {
    const CUresult result = call();
    if (result == CUDA_SUCCESS) retained(device, *context);
    return result;
  }

  /// Makes the driver's call that releases the context. To be called under the lock, if there is
  /// one.
  template <typename Call>
  CUresult release(CUdevice device, const Call& call) {
    const CUresult result = call();
    if (result == CUDA_SUCCESS) released(device);
    return result;
  }

  /// Whether the next release gives up the last reference that was counted. A reference that was
  /// released without a hook is still counted: an earlier release may be the driver's last.
  bool at_last_reference(CUdevice device);

  /// Whether the driver has the context. False as well if it does not say, after a second attempt:
  /// cupool reuses the events of a context that it takes to be alive.
  static bool is_active(const cuda::Driver& driver, CUdevice device);

  /// The handle that a hooked call returned last, or null. The context may have ended since.
  CUcontext known(CUdevice device);

  /// The handle if the context is active, else null. If the driver does not say, after a second
  /// attempt: the known handle. One that no hooked call returned is retained briefly. To be called
  /// under the lock.
  CUcontext active(const cuda::Driver& driver, CUdevice device);

 private:
  /// Of one device.
  struct Uses {
    util::Ranked<util::LockRank::primary_context> mutex;
    std::atomic<unsigned> references{0};  ///< retained and not released, by the hooks
    /// From the program's own calls: a query of the driver takes a reference, and if the driver
    /// refuses its release, the context stays alive.
    std::atomic<CUcontext> handle{nullptr};
  };

  /// Whether the driver has the context. Nullopt: it does not say.
  static std::optional<bool> state(const cuda::Driver& driver, CUdevice device);

  static bool has_slot(CUdevice device) { return device >= 0 && device < stats::kMaxDevices; }
  Uses& uses_of(CUdevice device) { return all_[has_slot(device) ? device : stats::kMaxDevices]; }
  void retained(CUdevice device, CUcontext context);
  void released(CUdevice device);

  Uses all_[stats::kMaxDevices + 1];  ///< the last one: of all other devices
};

}  // namespace cupool::engine
