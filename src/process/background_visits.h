// SPDX-License-Identifier: Apache-2.0
// Background threads visit the program's contexts from time to time, until the driver is about to
// shut down. (engine/context/context_visit keeps contexts from ending during a visit.)
#pragma once

#include <chrono>

namespace cupool::process {

/// A background thread's use of contexts, for the lifetime of the object. If not `allowed()`, the
/// driver is about to shut down. Keep it short: the program may be waiting.
class BackgroundVisit {
 public:
  BackgroundVisit();
  ~BackgroundVisit();
  BackgroundVisit(const BackgroundVisit&) = delete;
  BackgroundVisit& operator=(const BackgroundVisit&) = delete;

  bool allowed() const { return allowed_; }

 private:
  bool allowed_ = false;
};

/// The end of the process waits no longer for a visit.
inline constexpr std::chrono::milliseconds kLongestWaitForVisits{10'000};

/// Ends visits for good, after the current one: the driver is about to shut down. False: one is
/// still in the driver, which may hold what other calls of the driver need.
bool end_background_visits(std::chrono::milliseconds limit = kLongestWaitForVisits);

/// The same without a wait: a current visit continues. Takes no lock.
void end_background_visits_at_once();

}  // namespace cupool::process
