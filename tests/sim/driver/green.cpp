// SPDX-License-Identifier: Apache-2.0
// Streams of a green context have no implicit order with others: the documentation promises none.
#include "driver/green.h"

#include "driver/world.h"

namespace cupool::sim {

CUcontext NamedContext::handle() const {
  if (green != nullptr) return green->context_handle();
  return context == nullptr ? nullptr : context->handle();
}

CUresult NamedContext::usable() const {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const bool lives = context->alive && (green == nullptr || green->alive);
  return lives ? context->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

GreenContext& create_green(Context& primary, unsigned sms) {
  World& w = world();
  w.greens.push_back(std::make_unique<GreenContext>());
  GreenContext& green = *w.greens.back();
  green.primary = &primary;
  green.id = ++w.last_id;
  green.sms = sms;
  green.default_stream = &create_stream(primary, CU_STREAM_NON_BLOCKING, 0);
  green.default_stream->green = &green;
  return green;
}

void end_green(GreenContext& green) {
  green.alive = false;
}

void end_greens_of(const Context& primary) {
  for (auto& green : world().greens) {
    if (green->primary == &primary) end_green(*green);
  }
}

Stream& per_thread_stream(GreenContext& green) {
  Stream*& slot = green.per_thread[this_thread()];
  if (slot == nullptr) {
    slot = &create_stream(*green.primary, CU_STREAM_NON_BLOCKING, 0);
    slot->green = &green;
  }
  return *slot;
}

std::vector<OpRef> tails(GreenContext& green) {
  std::vector<OpRef> ops = green.orphans;
  for (auto& entry : green.primary->streams) {
    if (entry.first->green == &green && entry.first->last != nullptr) {
      ops.push_back(entry.first->last);
    }
  }
  return ops;
}

}  // namespace cupool::sim
