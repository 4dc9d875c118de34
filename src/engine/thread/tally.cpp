// SPDX-License-Identifier: Apache-2.0
// Folding a thread's tally into the statistics.
#include "engine/thread/tally.h"

#include "engine/block/accounting.h"

namespace cupool::engine {

using stats::Counter;
using stats::Gauge;

void Tally::fold(stats::DeviceStats& stats) {
  if (mallocs != 0) {
    stats.add(Counter::malloc_calls_total, mallocs);
    stats.add(Counter::malloc_requested_bytes_total, malloc_bytes);
    stats.add(Counter::served_thread_cache_total, mallocs);
  }
  if (frees != 0) {
    stats.add(Counter::free_calls_total, frees);
    stats.add(Counter::free_bytes_total, free_bytes);
  }
  // Adds the highest value first, so that a peak between two folds is seen.
  for (const Gauge gauge : {Gauge::application_bytes, Gauge::device_bytes}) {
    if (application_high > 0) stats.gauge_add(gauge, application_high);
    const std::int64_t rest = application() - application_high;
    if (rest != 0) stats.gauge_add(gauge, rest);
  }
  const auto add = [&stats](Gauge gauge, std::int64_t bytes) {
    if (bytes != 0) stats.gauge_add(gauge, bytes);
  };
  const std::int64_t allocated = signed_bytes(malloc_capacity);
  const std::int64_t freed = signed_bytes(free_capacity);
  add(Gauge::rounding_bytes, allocated - freed - application());
  add(Gauge::cached_bytes, reclaimed - allocated);
  add(Gauge::retired_bytes, freed - reclaimed);
  sizes.fold(stats.requested_sizes());
  if (owner != nullptr && mallocs != 0) owner->add_mallocs(mallocs, malloc_bytes);
  if (owner != nullptr && frees != 0) owner->add_frees(frees);
  told_calls += mallocs + frees;
  static_cast<TallyFigures&>(*this) = TallyFigures{};
}

}  // namespace cupool::engine
