// SPDX-License-Identifier: Apache-2.0
// The limits, from the settings and the present statistics.
#include "engine/backend/budget.h"

#include <algorithm>

#include "engine/backend/pool_backend.h"
#include "engine/reclaim/lane.h"
#include "stats/pool_growth.h"

namespace cupool::engine {
namespace {

// The first limit of `auto`, at least: with less, programs that free and allocate small blocks
// beside a busy GPU wait for it all the time (measured: 130 and 660 ns a pair).
constexpr std::uint64_t kLeastPending = 256ull << 20;
// Room for pending bytes in the footprint, at least. It holds the largest batch of a few large
// blocks, so that these do not count as too much.
constexpr std::uint64_t kLeastRoom = 64ull << 20;

}  // namespace

std::uint64_t Budget::peak_of(stats::Gauge gauge) const {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(stats_.value(gauge).peak, 0));
}

std::uint64_t Budget::footprint() const {
  const std::uint64_t peak = peak_of(stats::Gauge::application_bytes);
  std::uint64_t pending = Lane::is_open() ? 0 : limits_.max_pending;
  if (limits_.pending_grows) {
    pending = std::min(pending, std::max({peak_of(stats::Gauge::retired_bytes), kLeastRoom,
                                          batches_.load(std::memory_order_relaxed)}));
  }
  return peak + peak / 8 + stats::kPoolGrowthStep + pending;
}

std::uint64_t Budget::pending_limit() const {
  constexpr std::uint64_t kPendingShare = 2;
  if (!limits_.pending_grows) return limits_.max_pending;
  const std::uint64_t first =
      std::max(peak_of(stats::Gauge::application_bytes) / kPendingShare, kLeastPending);
  const std::uint32_t doublings = waits_.load(std::memory_order_relaxed).doublings;
  return first >= limits_.max_pending >> doublings ? limits_.max_pending : first << doublings;
}

void Budget::count_wait(bool ran_dry) {
  Waits before = waits_.load(std::memory_order_relaxed);
  Waits after;
  do {
    if (!pending_may_grow()) return;
    after = before;
    ++after.counted;
    if (ran_dry) ++after.dry;
    if (after.dry == kDryWaits) ++after.doublings;
    if (after.dry == kDryWaits || after.counted == kWaitsOfAPeriod) after.counted = after.dry = 0;
  } while (!waits_.compare_exchange_weak(before, after, std::memory_order_relaxed));
}

std::uint64_t Budget::pending_bound(std::uint64_t except) const {
  const stats::GaugeValue application = stats_.value(stats::Gauge::application_bytes);
  const auto unused =
      static_cast<std::uint64_t>(std::max<std::int64_t>(application.peak - application.current, 0));
  const std::uint64_t room = (unused - std::min(unused, except)) / 2;
  const std::uint64_t limit = pending_limit();
  return std::max(limit, std::min(limit + room, limits_.default_pending));
}

// The sum of blocks and idle pool memory grows only when new memory is taken: a released block
// becomes idle in its pool, and trimmed memory leaves the sum. The device's default pool is an
// exception, since it grows unseen.
std::uint64_t Budget::most_held(const PoolBackend* pools) {
  constexpr unsigned kMebibyte = 20;
  constexpr unsigned kGrowthAt = 32;
  const std::uint64_t growth =
      (stats_.value(stats::Counter::growth_total) << kGrowthAt) + (1ull << kGrowthAt);
  const std::uint64_t known = most_held_.load(std::memory_order_relaxed);
  if (known >> kGrowthAt == growth >> kGrowthAt && !limits_.use_default_pool) {
    return (known & ((1ull << kGrowthAt) - 1)) << kMebibyte;
  }
  const stats::PoolFigures pool = pools == nullptr ? stats::PoolFigures{} : pools->pair().figures();
  const std::uint64_t held = static_cast<std::uint64_t>(
      std::max<std::int64_t>(stats_.value(stats::Gauge::held_bytes).current, 0));
  const std::uint64_t idle =
      pool.reserved_current - std::min(pool.reserved_current, pool.used_current);
  const std::uint64_t mebibytes = ((held + idle) >> kMebibyte) + 1;
  most_held_.store(growth + mebibytes, std::memory_order_relaxed);
  return mebibytes << kMebibyte;
}

}  // namespace cupool::engine
