// SPDX-License-Identifier: Apache-2.0
// The table of devices.
#include "engine/context/devices.h"

#include <algorithm>

#include "engine/reclaim/device_use.h"

namespace cupool::engine {

Device& Devices::of(int ordinal) {
  const std::lock_guard lock(mutex_);
  Device*& device = devices_[static_cast<std::size_t>(ordinal)];
  if (device == nullptr) {
    device = new Device(driver_, ordinal, settings_);
    if (start_pools_later_.load(std::memory_order_acquire)) device->pool_start().leave_for_later();
  }
  if (plain_memory_.load(std::memory_order_acquire)) device->use_plain_memory();
  return *device;
}

DeviceList Devices::all() {
  DeviceList result;
  const std::lock_guard lock(mutex_);
  for (Device* device : devices_) {
    if (device != nullptr) result.add(device);
  }
  return result;
}

bool Devices::any_orphan_at(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  return std::any_of(devices_.begin(), devices_.end(), [&](Device* device) {
    return device != nullptr && device->orphans().contains(address);
  });
}

void Devices::use_plain_memory() {
  plain_memory_.store(true, std::memory_order_release);
  for (Device* device : all()) device->use_plain_memory();
}

void Devices::start_pools_later(bool later) {
  start_pools_later_.store(later, std::memory_order_release);
  if (later) return;
  for (Device* device : all()) device->pool_start().leave_to_first_block();
}

void Devices::device_in_use(int ordinal) {
  if (!note_device_in_use(ordinal)) return;
  for (Device* device : all()) {
    if (device->pools() != nullptr) device->pools()->pair().admit(ordinal);
  }
}

}  // namespace cupool::engine
