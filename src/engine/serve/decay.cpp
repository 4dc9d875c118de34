// SPDX-License-Identifier: Apache-2.0
// A step goes through the contexts of each device, and then through the device's pools.
#include "engine/serve/decay.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/block/accounting.h"
#include "engine/reclaim/lane_mark.h"
#include "engine/reclaim/serving.h"
#include "engine/serve/failure.h"
#include "stats/pool_growth.h"
#include "stats/timeline.h"

namespace cupool::engine {

using stats::Counter;
using stats::EventKind;

// Without host memory the step goes through the contexts that it knows by then.
void Decay::begin() {
  contexts_.clear();
  next_ = 0;
  released_.fill(0);
  for (const Device* device : registry_.devices().all()) {
    if (device->limits().use_default_pool) continue;
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      if (context->usable()) contexts_.push_back(context);
    }
  }
}

bool Decay::go_on() {
  if (next_ == contexts_.size()) begin();
  for (; next_ != contexts_.size(); ++next_, looked_ = trimming_ = false) {
    Context& context = *contexts_[next_];
    // cupool's calls harm no capture, but a capture is short, so decay makes none meanwhile.
    if (!context.usable() || Serving::any_capture()) continue;
    if (!trimming_ && give_back_some(context)) return true;
    const bool last_of_device =
        next_ + 1 == contexts_.size() || &contexts_[next_ + 1]->device() != &context.device();
    if (last_of_device && trim_some(context)) return true;
  }
  return false;
}

bool Decay::is_urgent() {
  for (Device* device : registry_.devices().all()) {
    if (device->limits().use_default_pool) continue;
    if (Serving::any_capture()) return false;
    // The driver counts idle stream-ordered blocks as used, in whichever pool.
    std::uint64_t idle = device->default_pool().fill().idle_bytes() + async_.bytes(*device);
    if (device->pools() != nullptr) {
      const std::int64_t cached = device->stats().value(stats::Gauge::cached_bytes).current;
      idle += static_cast<std::uint64_t>(std::max<std::int64_t>(cached, 0)) +
              device->pools()->pair().slack();
    }
    if (idle < stats::kPoolGrowthStep) continue;
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      if (is_scarce(*context)) return true;
    }
  }
  return false;
}

bool Decay::is_scarce(Context& context) const {
  const ContextVisit visit(context);
  if (!visit || !context.usable()) return false;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  return scope.ok() && driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS &&
         free_bytes < total_bytes / kScarceShare;
}

bool Decay::give_back_some(Context& context) {
  if (!looked_) settle_idle(context);
  looked_ = true;
  const std::uint64_t bytes = release_unneeded(context, kSlice);
  released_[static_cast<std::size_t>(context.device().ordinal())] += bytes;
  if (bytes == 0) context.cache().end_decay_step();
  return bytes != 0;
}

bool Decay::trim_some(Context& context) {
  Device& device = context.device();
  if (!trimming_ && device.pools() != nullptr) {
    device.pools()->decay().end_step(released_[static_cast<std::size_t>(device.ordinal())]);
  }
  const bool first = !trimming_;
  trimming_ = true;
  return trim_unneeded(context, kSlice, first);
}

void Decay::settle_idle(Context& context) {
  const ContextVisit visit(context);
  if (!visit) return;
  context.threads().drain_idle();
  // What was freed in a lane is released after a fence, which nobody else asks for there.
  if (LaneMark::number() != 0) context.ordering().epochs().join(0, 1);
  BlockList reclaimed;
  const CUresult result = context.ordering().poll(Ordering::Poll::all, &reclaimed);
  if (result != CUDA_SUCCESS) note_failure(context, result);
  if (!reclaimed.empty()) idle_.cache_or_release(context, reclaimed);
}

std::uint64_t Decay::release_unneeded(Context& context, std::uint64_t most_bytes) {
  const ContextVisit visit(context);
  if (!visit) return 0;
  GivingBack part(idle_.give_backs());
  BlockList unneeded = context.cache().evict_unneeded(most_bytes);
  BlockList plain;
  BlockList pooled;
  while (Block* block = unneeded.pop()) {
    (block->source == BlockSource::pool ? pooled : plain).push(block);
  }
  if (!plain.empty()) context.cache().cache(plain);
  const std::uint64_t bytes = pooled.bytes;
  part.gave_back = bytes != 0;
  idle_.release(context, pooled);
  return bytes;
}

bool Decay::trim_unneeded(Context& context, std::uint64_t most_bytes, bool ends_step) {
  const ContextVisit visit(context);
  if (!visit) return false;
  // In the visit: with the last context of its device the pool may go.
  Device& device = context.device();
  if (ends_step) {
    device.stats().gauge_set(stats::Gauge::default_pool_idle_bytes,
                             signed_bytes(device.default_pool().fill().unused()));
    device.default_pool().end_step();
  }
  GivingBack part(idle_.give_backs());
  PoolDecay::Trimmed trimmed = device.default_pool().trim_unneeded(most_bytes);
  if (device.pools() != nullptr) {
    const auto own = device.pools()->decay().trim_unneeded(context, most_bytes);
    trimmed.any = trimmed.any || own.any;
    trimmed.more = trimmed.more || own.more;
  }
  part.gave_back = trimmed.any;
  if (!trimmed.any) return trimmed.more;
  device.stats().add(Counter::trims_total);
  stats::note_event(EventKind::trim, device.stats(), 0);
  return trimmed.more;
}

}  // namespace cupool::engine
