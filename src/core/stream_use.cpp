// The marks: a place for each thread that is in such a hook.
#include "core/stream_use.h"

#include <sched.h>
#include <time.h>

#include <cstddef>
#include <cstdint>

#include "util/clock.h"

namespace cupool::core {
namespace {

thread_local std::size_t last_place;

bool is_default(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

std::array<StreamUse::Place, 64> StreamUse::places_{};
std::atomic<unsigned> StreamUse::unnamed_{0};

// Sequentially consistent, as is the look of who destroys: what the driver lets other threads see
// of the work comes after the mark.
StreamUse::StreamUse(CUstream stream) {
  if (is_default(stream)) return;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[(last_place + i) % places_.size()];
    CUstream none = nullptr;
    if (place.stream.load(std::memory_order_relaxed) != nullptr ||
        !place.stream.compare_exchange_strong(none, stream)) {
      continue;
    }
    last_place = (last_place + i) % places_.size();
    place_ = &place;
    return;
  }
  unnamed_use_ = true;
  unnamed_.fetch_add(1);
}

StreamUse::~StreamUse() {
  if (place_ != nullptr) place_->stream.store(nullptr, std::memory_order_release);
  if (unnamed_use_) unnamed_.fetch_sub(1, std::memory_order_release);
}

bool StreamUse::any_other(CUstream stream) {
  if (unnamed_.load() != 0) return true;
  for (const Place& place : places_) {
    if (place.stream.load() == stream) return true;
  }
  return false;
}

void StreamUse::wait_for_others(CUstream stream) {
  constexpr unsigned kYields = 100;
  constexpr std::uint64_t kLongestNs = 1'000'000'000;
  constexpr timespec kMoment{0, 50'000};
  if (is_default(stream) || !any_other(stream)) return;
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
  for (Place& place : places_) place.stream.store(nullptr, std::memory_order_relaxed);
  unnamed_.store(0, std::memory_order_relaxed);
}

}  // namespace cupool::core
