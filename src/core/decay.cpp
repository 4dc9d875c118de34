// A step goes through the contexts of each device, and then through the device's pools.
#include "core/decay.h"

namespace cupool::core {

void Decay::begin() {
  contexts_.clear();
  for (const Device* device : allocator_.registry().devices()) {
    if (device->limits().use_default_pool) continue;
    for (Context* context : allocator_.registry().contexts_of(device->ordinal())) {
      if (context->usable()) contexts_.push_back(context);
    }
  }
  next_ = 0;
  released_.fill(0);
}

bool Decay::go_on() {
  if (next_ == contexts_.size()) begin();
  for (; next_ != contexts_.size(); ++next_, looked_ = trimming_ = false) {
    Context& context = *contexts_[next_];
    // No call of ours harms one, but it is short: rather none at all.
    if (!context.usable() || Ordering::any_capture()) continue;
    if (!trimming_ && give_back_some(context)) return true;
    const bool last_of_device =
        next_ + 1 == contexts_.size() || &contexts_[next_ + 1]->device() != &context.device();
    if (last_of_device && trim_some(context)) return true;
  }
  return false;
}

bool Decay::give_back_some(Context& context) {
  if (!looked_) allocator_.settle_idle(context);
  looked_ = true;
  const std::uint64_t bytes = allocator_.release_unneeded(context, kSlice);
  released_[static_cast<std::size_t>(context.device().ordinal())] += bytes;
  if (bytes == 0) context.cache().end_decay_step();
  return bytes != 0;
}

bool Decay::trim_some(Context& context) {
  Device& device = context.device();
  if (!trimming_) device.end_decay_step(released_[static_cast<std::size_t>(device.ordinal())]);
  trimming_ = true;
  bool more = false;
  allocator_.trim_unneeded(context, kSlice, &more);
  return more;
}

}  // namespace cupool::core
