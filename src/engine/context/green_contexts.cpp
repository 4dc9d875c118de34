// SPDX-License-Identifier: Apache-2.0
// A table by the green handle: there are few.
#include "engine/context/green_contexts.h"

#include <new>

namespace cupool::engine {

// Not on the heap: asked also where that is exhausted.
GreenContexts& GreenContexts::of_process() {
  alignas(GreenContexts) static unsigned char place[sizeof(GreenContexts)];
  static auto* const all = new (place) GreenContexts;
  return *all;
}

bool GreenContexts::add(void* green, const Green& made) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    all_[green] = made;
  } catch (const std::bad_alloc&) {
    return false;
  }
  count_.store(all_.size(), std::memory_order_relaxed);
  return true;
}

std::optional<GreenContexts::Green> GreenContexts::find(void* green) {
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(green);
  return found == all_.end() ? std::nullopt : std::optional<Green>(found->second);
}

void GreenContexts::primary_ended(CUcontext primary) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto& entry : all_) {
    if (entry.second.primary == primary) entry.second.handle = nullptr;
  }
}

void GreenContexts::remove(void* green) {
  const std::lock_guard lock(mutex_);
  all_.erase(green);
  count_.store(all_.size(), std::memory_order_relaxed);
}

CUcontext GreenContexts::look_up(CUcontext handle) {
  if (handle == nullptr) return nullptr;  // as that of one which has ended
  const std::lock_guard lock(mutex_);
  for (const auto& entry : all_) {
    if (entry.second.handle == handle) return entry.second.primary;
  }
  return handle;
}

}  // namespace cupool::engine
