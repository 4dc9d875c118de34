// SPDX-License-Identifier: Apache-2.0
// A counter instead of a held lock: a visit calls the driver (I4).
#include "process/background_visits.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>

namespace cupool::process {
namespace {

std::atomic<bool> ended{false};
std::mutex mutex;
int visits = 0;

// Never destroyed: a thread may still wait at the end of the process. Not on the heap, which may be
// exhausted.
std::condition_variable& left() {
  alignas(std::condition_variable) static unsigned char place[sizeof(std::condition_variable)];
  static auto* const condition = new (place) std::condition_variable;
  return *condition;
}

}  // namespace

BackgroundVisit::BackgroundVisit() {
  const std::lock_guard<std::mutex> lock(mutex);
  allowed_ = !ended.load(std::memory_order_relaxed);
  if (allowed_) ++visits;
}

BackgroundVisit::~BackgroundVisit() {
  if (!allowed_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    --visits;
  }
  left().notify_all();
}

// A visit that frees page-locked memory waits in the driver for a kernel that has just begun, and
// some kernels end with the process alone.
bool end_background_visits(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex);
  ended = true;
  return left().wait_for(lock, limit, [] { return visits == 0; });
}

void end_background_visits_at_once() {
  ended.store(true, std::memory_order_relaxed);
}

}  // namespace cupool::process
