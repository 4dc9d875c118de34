// SPDX-License-Identifier: Apache-2.0
// Requests of the program: the figures of a device, and the return of idle memory.
#include "process/requests.h"

#include <algorithm>
#include <cstring>

#include "process/lifecycle.h"

namespace cupool::process {
namespace {

using stats::Counter;
using stats::Gauge;

std::uint64_t of(const stats::DeviceStats& stats, Gauge gauge) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(stats.value(gauge).current, 0));
}

std::uint64_t peak_of(const stats::DeviceStats& stats, Gauge gauge) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(stats.value(gauge).peak, 0));
}

engine::Device* find(engine::Allocator& allocator, int ordinal) {
  for (engine::Device* device : allocator.registry().devices().all()) {
    if (device->ordinal() == ordinal) return device;
  }
  return nullptr;
}

cupool_figures figures_of(const engine::Device& device) {
  const stats::DeviceStats& stats = device.stats();
  const stats::PoolFigures pool = device.pool_figures();
  cupool_figures figures{};
  figures.application_bytes = of(stats, Gauge::application_bytes);
  figures.rounding_bytes = of(stats, Gauge::rounding_bytes);
  figures.retired_bytes = of(stats, Gauge::retired_bytes);
  figures.cached_bytes = of(stats, Gauge::cached_bytes);
  figures.held_bytes = of(stats, Gauge::held_bytes);
  figures.passthrough_bytes = of(stats, Gauge::passthrough_bytes);
  figures.pool_reserved_bytes = pool.valid ? pool.reserved_current : 0;
  figures.pool_used_bytes = pool.valid ? pool.used_current : 0;
  figures.application_peak_bytes = peak_of(stats, Gauge::application_bytes);
  figures.held_peak_bytes = peak_of(stats, Gauge::held_bytes);
  figures.malloc_calls_total = stats.value(Counter::malloc_calls_total);
  figures.malloc_failed_total = stats.value(Counter::malloc_failed_total);
  figures.free_calls_total = stats.value(Counter::free_calls_total);
  figures.free_waits_total = stats.value(Counter::free_waits_total);
  figures.free_wait_ns_total = stats.value(Counter::free_wait_ns_total);
  figures.growth_bytes_total = stats.value(Counter::growth_bytes_total);
  figures.oom_rescues_total = stats.value(Counter::oom_rescues_total);
  return figures;
}

// Bytes of the device that cupool holds, or has the default pool keep.
std::uint64_t footprint(engine::Device& device) {
  const stats::PoolFigures pool = device.pool_figures();
  return device.default_pool().fill().reserved +
         (pool.valid ? pool.reserved_current : of(device.stats(), Gauge::held_bytes));
}

std::uint64_t trim_device(engine::Allocator& allocator, engine::Device& device) {
  const std::uint64_t before = footprint(device);
  for (engine::Context* context : allocator.registry().contexts_of(device.ordinal())) {
    if (!context->usable()) continue;
    engine::Patience patience;
    allocator.out_of_memory().give_back_idle(*context, patience);  // of all contexts of the device
    break;
  }
  const std::uint64_t after = footprint(device);
  return before > after ? before - after : 0;
}

}  // namespace

int snapshot(int ordinal, cupool_figures* figures) noexcept {
  try {
    engine::Allocator* allocator = engine();
    if (allocator == nullptr) return CUPOOL_NOT_RUNNING;
    const engine::Device* device = find(*allocator, ordinal);
    if (device == nullptr) return CUPOOL_INVALID_ARGUMENT;
    allocator->figures().fold();
    cupool_figures all = figures_of(*device);
    all.size = std::min<std::uint64_t>(figures->size, sizeof all);
    std::memcpy(figures, &all, all.size);
    return CUPOOL_OK;
  } catch (...) {
    return CUPOOL_FAILED;
  }
}

int trim(int ordinal, std::uint64_t* released_bytes) noexcept {
  try {
    engine::Allocator* allocator = engine();
    if (allocator == nullptr) return CUPOOL_NOT_RUNNING;
    if (ordinal != -1 && find(*allocator, ordinal) == nullptr) return CUPOOL_INVALID_ARGUMENT;
    std::uint64_t released = 0;
    for (engine::Device* device : allocator->registry().devices().all()) {
      if (ordinal == -1 || device->ordinal() == ordinal)
        released += trim_device(*allocator, *device);
    }
    if (released_bytes != nullptr) *released_bytes = released;
    return CUPOOL_OK;
  } catch (...) {
    return CUPOOL_FAILED;
  }
}

}  // namespace cupool::process
