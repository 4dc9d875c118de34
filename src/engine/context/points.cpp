// SPDX-License-Identifier: Apache-2.0
// The events of points, which belong to one thread, and to the end of their context.
#include "engine/context/points.h"

#include <time.h>

#include <mutex>
#include <new>

#include "cuda/scopes.h"
#include "engine/context/context.h"
#include "util/clock.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {
namespace {

constexpr timespec kMoment{0, 50'000};

}  // namespace

void ContextPoints::add(PointEvent& event) {
  const std::lock_guard lock(mutex_);
  event.after = first_;
  if (first_ != nullptr) first_->before = &event;
  first_ = &event;
}

void ContextPoints::remove(PointEvent& event) {
  const std::lock_guard lock(mutex_);
  if (event.after != nullptr) event.after->before = event.before;
  (event.before != nullptr ? event.before->after : first_) = event.after;
}

// One look at each. The lock is not held for longer, since threads that end need it.
bool ContextPoints::any_pending(const cuda::Driver& driver) {
  const cuda::RelaxedCaptureScope relaxed(driver);
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (PointEvent* event = first_; event != nullptr; event = event->after) {
    if (!event->pending.load(std::memory_order_acquire)) continue;
    if (driver.cuEventQuery(event->event) == CUDA_ERROR_NOT_READY) {
      any = true;
    } else {
      event->pending.store(false, std::memory_order_release);
    }
  }
  return any;
}

void ContextPoints::wait(const cuda::Driver& driver) {
  constexpr std::uint64_t kLongestPointsNs = 10'000'000'000;
  if (CUPOOL_MUTATED("ends-before-its-points")) return;
  const util::Uncancelled throughout;
  const std::uint64_t begin = util::now_ns();
  while (any_pending(driver)) {
    if (util::now_ns() - begin > kLongestPointsNs) return forget();
    nanosleep(&kMoment, nullptr);
  }
}

void ContextPoints::forget() {
  const std::lock_guard lock(mutex_);
  for (PointEvent* event = first_; event != nullptr; event = event->after) {
    event->pending.store(false, std::memory_order_release);
  }
}

bool Point::is_alive() const {
  return !owner->gone() && owner->incarnation() == incarnation;
}

UsablePoint::UsablePoint(const Point& point, CUcontext used) {
  constexpr std::uint64_t kAtOnce = 1;
  if (point.owner == nullptr) return;
  if (point.owner->handle() != used) {
    const util::Uncancelled throughout;
    for (;;) {
      visit_.emplace(*point.owner, kAtOnce);
      if (*visit_) break;
      visit_.reset();
      const bool is_awaited =
          point.number != 0 && point.shared->pending.load(std::memory_order_acquire);
      if (!is_awaited || !point.is_alive()) return;
      nanosleep(&kMoment, nullptr);
    }
  }
  usable_ = point.is_alive();
}

bool is_complete(const cuda::Driver& driver, Point& point) {
  if (point.number == 0) return true;
  const UsablePoint usable(point, nullptr);
  const cuda::RelaxedCaptureScope relaxed(driver);
  if (usable && driver.cuEventQuery(point.event()) == CUDA_ERROR_NOT_READY) return false;
  point.number = 0;
  return true;
}

void wait_on_host(const cuda::Driver& driver, Point& point) {
  const util::Uncancelled throughout;
  while (!is_complete(driver, point)) nanosleep(&kMoment, nullptr);
}

// The event is about to be recorded.
bool prepare(const cuda::Driver& driver, Context& context, Point& point) {
  if (point.owner != &context || !point.is_alive()) {
    drop(driver, point, context.handle());
    auto* const shared = new (std::nothrow) PointEvent;
    if (shared == nullptr) return false;
    if (driver.cuEventCreate(&shared->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
      delete shared;
      return false;
    }
    point.owner = &context;
    point.incarnation = context.incarnation();
    point.shared = shared;
    context.threads().points().add(*shared);
  }
  point.shared->pending.store(true, std::memory_order_release);
  return true;
}

void drop(const cuda::Driver& driver, Point& point, CUcontext used) {
  if (point.owner == nullptr) return;
  point.number = 0;
  const UsablePoint usable(point, used);
  const CUevent event = point.event();
  forget(point);
  if (usable) driver.cuEventDestroy_v2(event);
}

void forget(Point& point) {
  if (point.owner == nullptr) return;
  point.owner->threads().points().remove(*point.shared);
  delete point.shared;
  point = Point{};
}

}  // namespace cupool::engine
