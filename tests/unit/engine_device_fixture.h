// SPDX-License-Identifier: Apache-2.0
// A device alone, with a context in it, on a fake driver with pools.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "engine/context/context.h"
#include "engine/context/device.h"
#include "engine_fake_pools.h"

namespace cupool::engine {

using stats::Counter;
using stats::Gauge;

class DeviceTest : public testing::Test {
 protected:
  static constexpr int kOrdinal = 2;
  static constexpr std::uint64_t kTotal = std::uint64_t{80} << 30;
  static constexpr std::uint64_t kMiB = 1ull << 20;
  static constexpr std::uint64_t kStep = test::FakePools::kStep;

  DeviceTest() {
    stats::reset_after_fork();
    test::gpu.capacity = kTotal;
    keep(&driver_);
  }
  // The next test's figures begin at 0 too.
  ~DeviceTest() override { stats::reset_after_fork(); }

  // Devices and their contexts are never destroyed. Reachable for ever, so that a leak detector
  // takes them for what they are.
  static void keep(const void* object) {
    static auto* const kept = new std::vector<const void*>;
    kept->push_back(object);
  }
  Device& make(std::initializer_list<const char*> options = {}, int ordinal = kOrdinal) {
    auto* const device = new Device(driver_, ordinal, test::settings_of(options));
    context_ = new Context(driver_, test::fake::context(), *device);
    keep(device);
    keep(context_);
    return *device;
  }

  // By the context of the last device that was made.
  CUdeviceptr allocate(Device& device, std::uint64_t capacity) {
    CUdeviceptr address = 0;
    EXPECT_EQ(device.backend().allocate(*context_, capacity, &address), CUDA_SUCCESS);
    return address;
  }
  bool release(Device& device, BlockSource source, CUdeviceptr address) {
    return device.backend_of(source).release(*context_, address);
  }
  void release_orphans(Device& device) {
    device.orphans().release(driver_, *context_, device.pools());
  }

  static BlockSource source(Device& device) { return device.backend().source(); }
  static void move(Device& device, Gauge gauge, std::uint64_t to) {
    const std::int64_t now = device.stats().value(gauge).current;
    device.stats().gauge_add(gauge, static_cast<std::int64_t>(to) - now);
  }
  static Block& set(Block& block, BlockSource source, std::uint64_t capacity) {
    block.source = source;
    block.capacity = capacity;
    return block;
  }
  bool may_cache(Device& device, BlockSource source, std::uint64_t capacity) {
    Block block;
    return device.may_cache(set(block, source, capacity));
  }

  cuda::Driver& driver_ = *new cuda::Driver(test::fake_driver_with_pools());
  Context* context_ = nullptr;
};

}  // namespace cupool::engine
