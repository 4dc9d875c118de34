// SPDX-License-Identifier: Apache-2.0
// A count for each context that has attachments: there are few. Beyond the places, the end of a
// context by a detach is not seen, as that by a call without a hook.
#include "engine/context/attachments.h"

#include <new>

namespace cupool::engine {

// Not on the heap: asked also where that is exhausted.
Attachments& Attachments::of_process() {
  alignas(Attachments) static unsigned char place[sizeof(Attachments)];
  static auto* const all = new (place) Attachments;  // never destroyed
  return *all;
}

Attachments::Count* Attachments::find_locked(CUcontext context) {
  for (Count& count : counts_) {
    if (count.attachments != 0 && count.context == context) return &count;
  }
  return nullptr;
}

void Attachments::add(CUcontext context) {
  const std::lock_guard lock(mutex_);
  Count* count = find_locked(context);
  for (Count& each : counts_) {
    if (count == nullptr && each.attachments == 0) count = &each;
  }
  if (count == nullptr) {
    beyond_ = true;
    return;
  }
  count->context = context;
  ++count->attachments;
}

bool Attachments::any(CUcontext context) {
  const std::lock_guard lock(mutex_);
  return beyond_ || find_locked(context) != nullptr;
}

void Attachments::remove(CUcontext context) {
  const std::lock_guard lock(mutex_);
  Count* const count = find_locked(context);
  if (count != nullptr) --count->attachments;
}

void Attachments::forget(CUcontext context) {
  const std::lock_guard lock(mutex_);
  Count* const count = find_locked(context);
  if (count != nullptr) count->attachments = 0;
}

}  // namespace cupool::engine
