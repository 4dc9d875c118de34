// SPDX-License-Identifier: Apache-2.0
// A count for each context that has attachments: there are few. Where one could not be counted, no
// end of a context by a detach is seen from then on, as none by a call without a hook.
#include "engine/context/attachments.h"

#include <new>

namespace cupool::engine {

// Not on the heap: asked also where that is exhausted.
Attachments& Attachments::of_process() {
  alignas(Attachments) static unsigned char place[sizeof(Attachments)];
  static auto* const all = new (place) Attachments;  // never destroyed
  return *all;
}

template <typename Is>
Attachments::Count* Attachments::find_locked(const Is& is) {
  for (Count& count : counts_) {
    if (is(count)) return &count;
  }
  for (Count& count : more_) {
    if (is(count)) return &count;
  }
  return nullptr;
}

Attachments::Count* Attachments::of_locked(CUcontext context) {
  return find_locked(
      [&](const Count& count) { return count.attachments != 0 && count.context == context; });
}

void Attachments::add(CUcontext context) {
  const std::lock_guard lock(mutex_);
  Count* count = of_locked(context);
  if (count == nullptr)
    count = find_locked([](const Count& each) { return each.attachments == 0; });
  if (count != nullptr) {
    count->context = context;
    ++count->attachments;
    return;
  }
  try {
    more_.push_back({context, 1});
  } catch (const std::bad_alloc&) {
    uncounted_ = true;
  }
}

bool Attachments::any(CUcontext context) {
  const std::lock_guard lock(mutex_);
  return uncounted_ || of_locked(context) != nullptr;
}

void Attachments::remove(CUcontext context) {
  const std::lock_guard lock(mutex_);
  Count* const count = of_locked(context);
  if (count != nullptr) --count->attachments;
}

void Attachments::forget(CUcontext context) {
  const std::lock_guard lock(mutex_);
  Count* const count = of_locked(context);
  if (count != nullptr) count->attachments = 0;
}

}  // namespace cupool::engine
