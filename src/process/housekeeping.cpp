// SPDX-License-Identifier: Apache-2.0
// Each visit of the threads does one part of their work; they pause between parts.
#include "process/housekeeping.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/serve/decay.h"
#include "process/background.h"
#include "process/background_visits.h"
#include "util/log.h"

namespace cupool::process {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Pause between two parts, so that the program finds the driver free.
constexpr microseconds kPause{1000};
// Time until work without a usable context is tried again.
constexpr microseconds kPatience{100'000};

engine::Allocator* served = nullptr;
microseconds decay_step{0};  // 0: nothing decays
std::mutex mutex;
std::condition_variable* woken = nullptr;  // never destroyed: the thread waits to the end
bool work_waits = false;
bool starter_is_wanted = false;
bool starter_runs = false;

void wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    work_waits = true;
  }
  woken->notify_one();
}

// Runs `part` until it returns false, or visits are no longer allowed.
template <typename Part>
void work(const Part& part) {
  for (;; std::this_thread::sleep_for(kPause)) {
    const BackgroundVisit visit;
    if (!visit.allowed() || cuda::shut_down() || !part()) return;
  }
}

void* run(void*) {
  engine::Decay decay(served->registry(), served->idle());
  for (Clock::time_point next = Clock::now() + decay_step;;) {
    work([] { return served->preparation().preallocate_some(); });
    if (decay_step.count() != 0 && Clock::now() >= next) {
      work([&] { return decay.go_on(); });
      next = Clock::now() + decay_step;
    }
    std::unique_lock<std::mutex> lock(mutex);
    const auto is_woken = [] { return work_waits; };
    if (served->preparation().preallocates()) {
      woken->wait_for(lock, decay_step.count() == 0 ? kPatience : std::min(decay_step, kPatience),
                      is_woken);
    } else if (decay_step.count() != 0) {
      woken->wait_until(lock, next, is_woken);
    } else {
      woken->wait(lock, is_woken);
    }
    work_waits = false;
  }
}

bool starter_may_end() {
  const std::lock_guard<std::mutex> lock(mutex);
  starter_runs = starter_is_wanted;
  starter_is_wanted = false;
  return !starter_runs;
}

// Runs while there are pools to start.
void* start_pools(void*) {
  for (bool all_started = false;;) {
    if (all_started && starter_may_end()) return nullptr;
    {
      const BackgroundVisit visit;
      all_started =
          visit.allowed() && (cuda::shut_down() || served->preparation().start_some_pools());
    }
    if (!all_started) std::this_thread::sleep_for(kPatience);
  }
}

void wake_starter() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (starter_runs) {
      starter_is_wanted = true;
      return;
    }
    starter_runs = true;
  }
  if (start_background("cupool-start", start_pools)) return;
  CUPOOL_LOG(info,
             "cannot start the thread that creates the pools; the next allocation creates and "
             "awaits them");
  served->preparation().start_pools_at_first();
}

}  // namespace

void start_housekeeping(engine::Allocator& allocator, const config::Settings& settings) {
  const bool preallocates = settings.prealloc_background && settings.prealloc.value != 0;
  served = &allocator;
  if (settings.pool_start == config::PoolStart::background) {
    allocator.preparation().start_pools_elsewhere(wake_starter);
  }
  if (settings.decay.count() == 0 && !preallocates) return;
  woken = new std::condition_variable;
  decay_step = std::chrono::duration_cast<microseconds>(settings.decay) /
               static_cast<int>(engine::BlockCache::kDecaySteps);
  if (!start_background("cupool-idle", run)) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_DECAY_MS and CUPOOL_PREALLOC_BACKGROUND: cannot start their thread, so idle memory "
        "is kept, and the first allocation waits for CUPOOL_PREALLOC. Check the limit of threads "
        "(ulimit -u)");
    return;
  }
  if (preallocates) allocator.preparation().preallocate_elsewhere(wake);
}

}  // namespace cupool::process
