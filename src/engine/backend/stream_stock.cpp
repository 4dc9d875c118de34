// SPDX-License-Identifier: Apache-2.0
// Streams with their thread counts. There are few, so a linear search is fast.
#include "engine/backend/stream_stock.h"

#include <algorithm>

namespace cupool::engine {

StreamStock::Shared* StreamStock::least_locked() {
  const auto fewer = [](const Shared& a, const Shared& b) { return a.threads < b.threads; };
  Shared* const end = all_.data() + count_;
  Shared* const least = std::min_element(all_.data(), end, fewer);
  return least == end ? nullptr : least;
}

bool StreamStock::take_used(CUstream* stream) {
  const std::lock_guard lock(mutex_);
  Shared* const least = least_locked();
  if (least == nullptr || (least->threads != 0 && count_ < kStreams)) return false;
  ++least->threads;
  *stream = least->stream;
  return true;
}

bool StreamStock::take_created(CUstream created, CUstream* stream) {
  const std::lock_guard lock(mutex_);
  const bool is_kept = count_ < kStreams;
  if (is_kept) all_[count_++] = {created, 0};
  Shared& taken = is_kept ? all_[count_ - 1] : *least_locked();
  ++taken.threads;
  *stream = taken.stream;
  return is_kept;
}

void StreamStock::put_back(CUstream stream) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count_; ++i) {
    if (all_[i].stream == stream && all_[i].threads != 0) --all_[i].threads;
  }
}

StreamStock::Streams StreamStock::all() {
  Streams streams;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count_; ++i) streams.push(all_[i].stream);
  return streams;
}

bool StreamStock::begin_spare() {
  const std::lock_guard lock(mutex_);
  if (spares_made_ >= count_) return false;
  ++spares_made_;
  return true;
}

void StreamStock::end_spare(CUstream created) {
  const std::lock_guard lock(mutex_);
  if (created == nullptr) {
    --spares_made_;
  } else {
    spares_.push(created);
  }
}

CUstream StreamStock::take_spare() {
  const std::lock_guard lock(mutex_);
  return spares_.empty() ? nullptr : spares_.pop();
}

void StreamStock::clear() {
  const std::lock_guard lock(mutex_);
  count_ = 0;
  spares_.clear();
  spares_made_ = 0;
}

}  // namespace cupool::engine
