// SPDX-License-Identifier: Apache-2.0
// Most looks end after the comparison of two numbers.
#include "engine/serve/peak_sampler.h"

#include <mutex>

#include "engine/block/accounting.h"
#include "stats/timeline.h"

namespace cupool::engine {
namespace {

using stats::DeviceStats;
using stats::Gauge;
using stats::PeakUse;

std::int64_t now(const DeviceStats& stats, Gauge gauge) {
  return stats.value(gauge).current;
}

std::uint64_t reserved_now(Device& device) {
  return device.pools() == nullptr ? 0 : device.pools()->pair().reserved();
}

// Blocks in another thread's hands are in no gauge but held_bytes, so cached bytes are the
// remainder. What pools have reserved is read last: it is no less than what blocks were counted.
PeakUse read(Device& device) {
  const DeviceStats& stats = device.stats();
  PeakUse use;
  use.time_ns = signed_bytes(stats::since_start_ns());
  const std::int64_t held = now(stats, Gauge::held_bytes);
  use.plain_bytes = now(stats, Gauge::plain_bytes);
  use.application_bytes = now(stats, Gauge::application_bytes);
  use.rounding_bytes = now(stats, Gauge::rounding_bytes);
  use.retired_bytes = now(stats, Gauge::retired_bytes);
  use.cached_bytes = held - use.application_bytes - use.rounding_bytes - use.retired_bytes;
  use.driver_slack_bytes = signed_bytes(reserved_now(device)) - (held - use.plain_bytes);
  return use;
}

}  // namespace

void PeakSampler::look(Context& context) {
  Device& device = context.device();
  const DeviceStats& stats = device.stats();
  stats::PeakUseRecord& record = stats::peak_use_of(device.ordinal());
  const PeakUse highest = record.read();
  const std::int64_t held = now(stats, Gauge::held_bytes);
  const std::int64_t plain = now(stats, Gauge::plain_bytes);
  const std::uint64_t at_most = device.pools() == nullptr ? 0 : device.pools()->reserved_at_most();
  std::int64_t taken = signed_bytes(at_most) + plain;
  if (!highest.is_reached_by(taken, held)) return;
  if (taken > highest.taken_bytes()) {  // or the pools have shrunk since
    taken = signed_bytes(reserved_now(device)) + plain;
    if (!highest.is_reached_by(taken, held)) return;
  }

  const std::lock_guard lock(mutex_);
  sample(context, record, taken > highest.taken_bytes());
}

void PeakSampler::sample(Context& context, stats::PeakUseRecord& record, bool is_new_peak) {
  Device& device = context.device();
  if (is_new_peak) {
    fold_all(device);
  } else if (ThreadCache* own = thread_cache(context)) {
    context.threads().fold(*own);
  }
  PeakUse use = read(device);
  if (!use.adds_up()) {
    fold_all(device);
    use = read(device);
  }
  if (use.adds_up() && record.read().is_reached_by(use.taken_bytes(), use.held_bytes())) {
    record.write(use);
  }
}

void PeakSampler::fold_all(const Device& device) {
  for (Context* context : registry_.contexts_of(device.ordinal())) context->threads().fold();
}

}  // namespace cupool::engine
