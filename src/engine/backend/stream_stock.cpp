// SPDX-License-Identifier: Apache-2.0
// Streams with their thread counts. There are few, so a linear search is fast.
#include "engine/backend/stream_stock.h"

#include <algorithm>

namespace cupool::engine {

bool StreamStock::take_used(CUstream* stream) {
  const std::lock_guard lock(mutex_);
  const auto fewer = [](const Shared& a, const Shared& b) { return a.threads < b.threads; };
  const auto least = std::min_element(all_.begin(), all_.end(), fewer);
  if (least == all_.end() || (least->threads != 0 && all_.size() < kStreams)) return false;
  ++least->threads;
  *stream = least->stream;
  return true;
}

void StreamStock::add(CUstream created) {
  const std::lock_guard lock(mutex_);
  all_.push_back({created, 1});
}

void StreamStock::put_back(CUstream stream) {
  const std::lock_guard lock(mutex_);
  for (Shared& shared : all_) {
    if (shared.stream == stream && shared.threads != 0) --shared.threads;
  }
}

std::vector<CUstream> StreamStock::all() {
  std::vector<CUstream> streams;
  const std::lock_guard lock(mutex_);
  for (const Shared& shared : all_) streams.push_back(shared.stream);
  return streams;
}

bool StreamStock::begin_spare() {
  const std::lock_guard lock(mutex_);
  if (spares_made_ >= std::min(all_.size(), kStreams)) return false;
  ++spares_made_;
  return true;
}

void StreamStock::end_spare(CUstream created) {
  const std::lock_guard lock(mutex_);
  if (created == nullptr) {
    --spares_made_;
  } else {
    spares_.push_back(created);
  }
}

CUstream StreamStock::take_spare() {
  const std::lock_guard lock(mutex_);
  if (spares_.empty()) return nullptr;
  const CUstream spare = spares_.back();
  spares_.pop_back();
  return spare;
}

void StreamStock::clear() {
  const std::lock_guard lock(mutex_);
  all_.clear();
  spares_.clear();
  spares_made_ = 0;
}

}  // namespace cupool::engine
