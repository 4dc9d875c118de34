// SPDX-License-Identifier: Apache-2.0
// The devices that serve or have served, and settings common to all of them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "config/settings.h"
#include "cuda/driver.h"
#include "engine/context/device.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// Some devices, without host memory of the heap: background threads make such lists all the time,
/// and a forked child would keep what they had just then. There is a bound on devices; there is
/// none on contexts, which are looked up one at a time (ContextList).
class DeviceList {
 public:
  void add(Device* device) { devices_[count_++] = device; }
  Device* const* begin() const { return devices_.data(); }
  Device* const* end() const { return devices_.data() + count_; }
  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  std::array<Device*, stats::kMaxDevices> devices_;
  std::size_t count_ = 0;
};

/// Thread-safe. A device is never destroyed.
class Devices {
 public:
  Devices(const cuda::Driver& driver, const config::Settings& settings)
      : driver_(driver), settings_(settings) {}

  /// The device with this ordinal (0 to stats::kMaxDevices - 1), created on first use. The driver
  /// is only asked for properties.
  Device& of(int ordinal);

  /// Every device so far. The pointers stay valid.
  DeviceList all();

  /// Whether memory that has outlived its context begins at `address`. Allocates nothing.
  bool any_orphan_at(CUdeviceptr address);

  /// From now on new memory of every device is plain, including devices used for the first time
  /// later.
  void use_plain_memory();

  /// Whether devices used for the first time from now on leave the start of their pools to a
  /// background thread.
  void start_pools_later(bool later);

  /// The process has created a context on device `ordinal`. From now on it has access to other
  /// devices' pool memory, as it has to plain memory.
  void device_in_use(int ordinal);

 private:
  const cuda::Driver& driver_;
  const config::Settings& settings_;
  util::Ranked<util::LockRank::devices> mutex_;
  std::array<Device*, stats::kMaxDevices> devices_{};
  std::atomic<bool> plain_memory_{false};
  std::atomic<bool> start_pools_later_{false};
};

}  // namespace cupool::engine
