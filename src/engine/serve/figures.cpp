// SPDX-License-Identifier: Apache-2.0
// Figures that combine several parts of the engine.
#include "engine/serve/figures.h"

#include <array>

#include "engine/block/accounting.h"
#include "util/mutation.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

void Figures::count_null_free() {
  count_in_current_device(Counter::free_calls_total);
  count_in_current_device(Counter::free_null_total);
}

void Figures::count_in_current_device(Counter counter) {
  Context* context = registry_.current();
  (context == nullptr ? stats::device(-1) : context->stats()).add(counter);
}

std::uint64_t Figures::idle_bytes() {
  Context* context = registry_.current();
  if (context == nullptr) return 0;
  fold();
  const DeviceStats& stats = context->stats();
  std::int64_t idle =
      stats.value(Gauge::cached_bytes).current + stats.value(Gauge::retired_bytes).current;
  idle -= signed_bytes(exports_.kept_bytes(context->device()));
  idle -= signed_bytes(context->device().budget().aside_bytes());
  PoolBackend* const pools = context->device().pools();
  if (pools != nullptr) {
    idle += signed_bytes(pools->pair().slack() + pools->preallocation().bytes());
  }
  // What the device's default pool can give back was given back before (trim_if_unclear()).
  if (CUPOOL_MUTATED("counts-fragments")) {
    idle += signed_bytes(context->device().default_pool().fill().idle_bytes());
  }
  if (stats.value(Gauge::application_bytes).current > 0) {
    if (pools != nullptr) idle -= signed_bytes(pools->pair().pinned_bytes());
  } else if (stats.value(Gauge::passthrough_bytes).current <= 0 &&
             context->small_chunk().is_open()) {
    idle += signed_bytes(SmallChunk::kBytes);
  }
  return idle > 0 ? static_cast<std::uint64_t>(idle) : 0;
}

void Figures::fold() {
  for (Device* device : registry_.devices().all()) {
    for (Context* context : registry_.contexts_of(device->ordinal())) context->threads().fold();
  }
  host_.fold();
  async_.idle().fold();
}

void Figures::refresh() {
  fold();
  if (cuda::shut_down()) return;
  std::array<std::int64_t, stats::kMaxDevices> live_blocks{};
  std::array<std::int64_t, stats::kMaxDevices> live_bytes{};
  blocks_.for_each([&](const Block& block) {
    if (block.state.load(std::memory_order_relaxed) != BlockState::live) return;
    const auto index = static_cast<std::size_t>(block.context->device().ordinal());
    ++live_blocks[index];
    live_bytes[index] += signed_bytes(block.requested);
  });
  for (Device* device : registry_.devices().all()) {
    const auto index = static_cast<std::size_t>(device->ordinal());
    device->stats().gauge_set(Gauge::leaked_blocks, live_blocks[index]);
    device->stats().gauge_set(Gauge::leaked_bytes, live_bytes[index]);
    device->stats().gauge_set(Gauge::pending_limit_bytes,
                              signed_bytes(device->budget().pending_limit()));
    device->stats().gauge_set(Gauge::default_pool_idle_bytes,
                              signed_bytes(device->default_pool().fill().unused()));
    device->stats().set_pool_figures(device->pool_figures());
  }
}

}  // namespace cupool::engine
