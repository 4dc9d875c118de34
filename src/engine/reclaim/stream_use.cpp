// SPDX-License-Identifier: Apache-2.0
// The marks: one place for each use in progress.
#include "engine/reclaim/stream_use.h"

#include <sched.h>
#include <time.h>

#include <cstdint>
#include <new>

#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::engine {
namespace {

bool is_default(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

StreamUse::Places StreamUse::places_;
thread_local StreamUse::Place* StreamUse::last_ = nullptr;
std::atomic<unsigned> StreamUse::unnamed_{0};

// Sequentially consistent, as is the check before a destruction: the mark comes before every effect
// of the work that the driver shows to other threads.
StreamUse::StreamUse(CUstream stream) {
  if (is_default(stream)) return;
  if (last_ != nullptr) place_ = take(*last_, stream);
  if (place_ == nullptr) place_ = take_any(stream);
  if (place_ != nullptr) {
    last_ = place_;
    return;
  }
  unnamed_use_ = true;
  unnamed_.fetch_add(1);
}

StreamUse::~StreamUse() {
  if (place_ != nullptr) place_->stream.store(nullptr, std::memory_order_release);
  if (unnamed_use_) unnamed_.fetch_sub(1, std::memory_order_release);
}

StreamUse::Place* StreamUse::take(Place& place, CUstream stream) {
  CUstream none = nullptr;
  const bool taken = place.stream.load(std::memory_order_relaxed) == nullptr &&
                     place.stream.compare_exchange_strong(none, stream, std::memory_order_seq_cst,
                                                          std::memory_order_relaxed);
  return taken ? &place : nullptr;
}

StreamUse::Place* StreamUse::take_any(CUstream stream) {
  for (Places* places = &places_; places != nullptr; places = more_of(*places)) {
    for (Place& place : places->all) {
      if (Place* const taken = take(place, stream)) return taken;
    }
  }
  return nullptr;
}

// The next places; allocates them if needed.
StreamUse::Places* StreamUse::more_of(Places& places) {
  Places* more = places.more.load();
  if (more != nullptr) return more;
  auto* const created = new (std::nothrow) Places;
  if (created == nullptr || places.more.compare_exchange_strong(more, created)) return created;
  delete created;
  return more;
}

bool StreamUse::any_other(CUstream stream) {
  if (unnamed_.load() != 0) return true;
  for (const Places* places = &places_; places != nullptr; places = places->more.load()) {
    for (const Place& place : places->all) {
      if (place.stream.load() == stream) return true;
    }
  }
  return false;
}

void StreamUse::wait_for_others(CUstream stream) {
  constexpr unsigned kYields = 100;
  constexpr std::uint64_t kLongestNs = 1'000'000'000;
  constexpr timespec kMoment{0, 50'000};
  if (is_default(stream) || !any_other(stream)) return;
  const util::Uncancelled throughout;
  const std::uint64_t begin = util::now_ns();
  for (unsigned looks = 0; any_other(stream) && util::now_ns() - begin < kLongestNs; ++looks) {
    if (looks < kYields) {
      sched_yield();
    } else {
      nanosleep(&kMoment, nullptr);
    }
  }
}

void StreamUse::forget() {
  for (Places* places = &places_; places != nullptr; places = places->more.load()) {
    for (Place& place : places->all) place.stream.store(nullptr, std::memory_order_relaxed);
  }
  unnamed_.store(0, std::memory_order_relaxed);
}

}  // namespace cupool::engine
