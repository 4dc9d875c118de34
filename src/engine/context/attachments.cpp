// SPDX-License-Identifier: Apache-2.0
// A count for each context that has attachments.
#include "engine/context/attachments.h"

namespace cupool::engine {

Attachments& Attachments::of_process() {
  static auto* const all = new Attachments;  // never destroyed
  return *all;
}

void Attachments::add(CUcontext context) {
  const std::lock_guard lock(mutex_);
  ++counts_[context];
}

bool Attachments::any(CUcontext context) {
  const std::lock_guard lock(mutex_);
  return counts_.count(context) != 0;
}

void Attachments::remove(CUcontext context) {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(context);
  if (found != counts_.end() && --found->second == 0) counts_.erase(found);
}

void Attachments::forget(CUcontext context) {
  const std::lock_guard lock(mutex_);
  counts_.erase(context);
}

}  // namespace cupool::engine
