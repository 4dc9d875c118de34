// SPDX-License-Identifier: Apache-2.0
// Points: events behind what a thread had submitted before a free (engine/context/thread_order). A
// thread uses them inside their context. The end of a context lets nobody in, and the driver waits
// there for all work of the context. A thread would wait with it, for work that its free had
// nothing to do with. So the end first waits for the work before the points, and says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "cuda/driver.h"
#include "engine/context/context_visit.h"
#include "util/lock_order.h"

namespace cupool::engine {

class Context;

/// The event of one point, in the list of its context.
struct PointEvent {
  CUevent event = nullptr;
  std::atomic<bool> pending{false};  ///< false: not recorded, or complete before the context's end
  PointEvent* before = nullptr;
  PointEvent* after = nullptr;
};

/// Those of all threads in a context. Thread-safe.
class ContextPoints {
 public:
  void add(PointEvent& event);
  void remove(PointEvent& event);
  /// The context is about to end, and no thread is inside: waits until no point is pending, for ten
  /// seconds at most.
  void wait(const cuda::Driver& driver);
  /// It has ended, and its events with it.
  void forget();

 private:
  bool any_pending(const cuda::Driver& driver);

  util::Ranked<util::LockRank::points> mutex_;
  PointEvent* first_ = nullptr;
};

/// A point of the calling thread.
struct Point {
  Context* owner = nullptr;  ///< null: there is no event
  std::uint64_t incarnation = 0;
  PointEvent* shared = nullptr;
  std::uint64_t number = 0;  ///< 0: complete, or none
  std::uint64_t covers = 0;  ///< its stream came behind all points up to this number

  CUevent event() const { return shared->event; }
  /// Of a point with an event.
  bool is_alive() const;
};

/// A point whose event can be used: its context is the caller's (`used`), or is visited. Waits for
/// the end of the context only as long as the point is pending.
class UsablePoint {
 public:
  UsablePoint(const Point& point, CUcontext used);
  explicit operator bool() const { return usable_; }

 private:
  std::optional<ContextVisit> visit_;
  bool usable_ = false;
};

/// Whether the work before the point is complete. So it is where the context has ended.
bool is_complete(const cuda::Driver& driver, Point& point);
/// Waits for it on the host, as the driver's free would have waited.
void wait_on_host(const cuda::Driver& driver, Point& point);

/// Makes `point` one of `context`, the caller's, with an event to record. False: refused.
bool prepare(const cuda::Driver& driver, Context& context, Point& point);
/// Gives the event up. `used`: the caller's context.
void drop(const cuda::Driver& driver, Point& point, CUcontext used = nullptr);
/// The same without the driver.
void forget(Point& point);

}  // namespace cupool::engine
