// Numbers and not a lock that is held: none of ours is while the driver destroys a context (I4).
#include "process/context_visits.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace cupool::process {
namespace {

std::atomic<bool> expected{false};
std::mutex mutex;
int pauses = 0;
int visits = 0;

// Never destroyed: a thread may still wait when the process is nearly gone.
std::condition_variable& left() {
  static auto* const condition = new std::condition_variable;
  return *condition;
}

void begin_pause() {
  std::unique_lock<std::mutex> lock(mutex);
  ++pauses;
  left().wait(lock, [] { return visits == 0; });
}

}  // namespace

void expect_context_visits() {
  expected.store(true, std::memory_order_release);
}

ContextVisit::ContextVisit() {
  const std::lock_guard<std::mutex> lock(mutex);
  allowed_ = pauses == 0;
  if (allowed_) ++visits;
}

ContextVisit::~ContextVisit() {
  if (!allowed_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    --visits;
  }
  left().notify_all();
}

ContextPause::ContextPause() : active_(expected.load(std::memory_order_acquire)) {
  if (active_) begin_pause();
}

ContextPause::~ContextPause() {
  if (!active_) return;
  const std::lock_guard<std::mutex> lock(mutex);
  --pauses;
}

void end_context_visits() {
  begin_pause();
}

void forget_context_visits() {
  expected.store(false, std::memory_order_relaxed);
}

}  // namespace cupool::process
