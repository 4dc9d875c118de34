// SPDX-License-Identifier: Apache-2.0
// Reads counters and gauges, and what the pools had reserved when that last changed.
#include "process/live_answer.h"

#include <errno.h>
#include <unistd.h>

#include "channel/messages.h"
#include "config/settings.h"
#include "engine/reclaim/lane_history.h"
#include "engine/serve/free_wait.h"
#include "process/modes.h"
#include "stats/peak_use.h"
#include "stats/timeline.h"
#include "util/clock.h"

namespace cupool::process {
namespace {

stats::LiveDevice device_now(engine::Device& device) {
  const stats::DeviceStats& stats = device.stats();
  stats::LiveDevice live;
  live.ordinal = device.ordinal();
  live.id = device.id();
  stats::set_text(&live.name, stats.device_name());
  live.total_memory_bytes = device.total_bytes();
  if (device.pools() != nullptr) live.pool_reserved_bytes = device.pools()->pair().reserved_seen();
  live.peak_taken_bytes = stats::peak_use_of(device.ordinal()).read().taken_bytes();
  for (std::size_t i = 0; i < live.gauges.size(); ++i) {
    live.gauges[i] = stats.value(stats::kLiveGauges[i]);
  }
  for (std::size_t i = 0; i < live.counters.size(); ++i) {
    live.counters[i] = stats.value(stats::kLiveCounters[i]);
  }
  return live;
}

// Work before the first allocation opens a lane whatever the settings say.
stats::LaneState lane_now() {
  const auto lane = engine::LaneHistory::read(util::now_ns());
  if (!config::settings().lane || !lane) return stats::LaneState::none;
  if (lane->end != nullptr) return stats::LaneState::left;
  return engine::LaneHistory::is_inside() ? stats::LaneState::inside : stats::LaneState::away;
}

}  // namespace

stats::LiveFigures live_figures(engine::Allocator& allocator) {
  stats::LiveFigures live;
  live.magic = channel::kNeighbourMagic;
  live.pid = getpid();
  live.waiting = engine::FreeWait::waiting_now();
  live.lane = lane_now();
  stats::set_text(&live.program, program_invocation_short_name);
  stats::set_text(&live.free_mode, config::text_of(allocator.policy().mode()));
  stats::set_text(&live.backend, backend_in_force(&allocator));
  allocator.figures().fold();
  for (engine::Device* device : allocator.registry().devices().all()) live.add(device_now(*device));
  live.time_ns = stats::since_start_ns();
  return live;
}

}  // namespace cupool::process
