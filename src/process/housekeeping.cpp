// SPDX-License-Identifier: Apache-2.0
// Each visit of the threads does one part of their work; they pause between parts.
#include "process/housekeeping.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/serve/decay.h"
#include "process/background.h"
#include "process/background_visits.h"
#include "process/neighbour_channel.h"
#include "util/log.h"

namespace cupool::process {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Pause between two parts, so that the program finds the driver free.
constexpr microseconds kPause{1000};
// Time until work without a usable context is tried again.
constexpr microseconds kPatience{100'000};
// Longest span of decay on a device that is nearly full, and longest time until that is seen.
constexpr microseconds kScarceSpan{1'000'000};

engine::Allocator* served = nullptr;
microseconds decay_step{0};    // 0: nothing decays
bool decay_is_chosen = false;  // by the user
std::mutex mutex;
std::condition_variable* woken = nullptr;  // never destroyed: the thread waits to the end
bool work_waits = false;
bool starter_is_wanted = false;
bool starter_runs = false;

// Not on the heap, which may be exhausted by the time of the first block.
std::condition_variable* make_woken() {
  alignas(std::condition_variable) static unsigned char place[sizeof(std::condition_variable)];
  return new (place) std::condition_variable;
}

bool is_chosen(std::string_view option) {
  const std::vector<config::EffectiveValue>& all = config::effective();
  return std::any_of(all.begin(), all.end(), [&](const config::EffectiveValue& value) {
    return value.name == option && !value.is_default;
  });
}

void wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    work_waits = true;
  }
  woken->notify_one();
}

// One part of the work, in a visit; false if there is none, or visits are no longer allowed.
// Without host memory, the next look finds what is left.
template <typename Part>
bool work_some(const Part& part) {
  const BackgroundVisit visit;
  const engine::VisitsWithoutWait at_once;
  try {
    return visit.allowed() && !cuda::shut_down() && part();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Runs `part` until it returns false, or visits are no longer allowed.
template <typename Part>
void work(const Part& part) {
  while (work_some(part)) std::this_thread::sleep_for(kPause);
}

// When decay takes stock: four times in CUPOOL_DECAY_MS, and while idle memory is urgent.
class Steps {
 public:
  // Does what is due.
  void go_on() {
    if (decay_step.count() == 0 || Clock::now() < next_look_) return;
    const bool urgent = decay_step > kScarceStep && is_urgent();
    if (urgent || Clock::now() >= next_step_) {
      // Before the pools, which then give it back at the same look.
      work([] { return served->default_pools().async().idle().give_back_unneeded(); });
      served->default_pools().async().idle().end_decay_step();
      work([this] { return decay_.go_on(); });
      work([] { return served->host().give_back_unneeded(); });
      served->host().end_decay_step();
      next_step_ = Clock::now() + decay_step;
    }
    next_look_ = std::min(next_step_, Clock::now() + (urgent ? kScarceStep : kScarceSpan));
  }
  Clock::time_point next() const { return next_look_; }

 private:
  static constexpr microseconds kScarceStep =
      kScarceSpan / static_cast<int>(engine::BlockCache::kDecaySteps);

  bool is_urgent() {
    return work_some([this] { return decay_.is_urgent(); });
  }

  engine::Decay decay_{*cuda::driver(), served->registry(), served->idle(),
                       served->default_pools().async().idle()};
  Clock::time_point next_step_ = Clock::now() + decay_step;
  Clock::time_point next_look_ = std::min(next_step_, Clock::now() + kScarceSpan);
};

void* run(void*) {
  for (Steps steps;;) {
    work([] { return served->preparation().preallocate_some(); });
    steps.go_on();
    std::unique_lock<std::mutex> lock(mutex);
    const auto is_woken = [] { return work_waits; };
    if (served->preparation().preallocates()) {
      woken->wait_for(lock, decay_step.count() == 0 ? kPatience : std::min(decay_step, kPatience),
                      is_woken);
    } else if (decay_step.count() != 0) {
      woken->wait_until(lock, steps.next(), is_woken);
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
    all_started =
        cuda::shut_down() || work_some([] { return served->preparation().start_some_pools(); });
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

// Most programs have not asked for it: they get no warning.
void start_decay() {
  if (start_background("cupool-idle", run)) return;
  served->default_pools().keep_none();
  if (decay_is_chosen) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_DECAY_MS: cannot start its thread, so idle memory is kept. Check the limit of "
        "threads (ulimit -u)");
  } else {
    CUPOOL_LOG(info, "cannot start the thread that gives idle memory back, so it is kept");
  }
}

// With the first block of a pool, or the first page-locked block that is cached: before, there is
// nothing to give back.
void start_decay_once() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (decay_step.count() == 0 || woken != nullptr) return;
    woken = make_woken();
  }
  start_decay();
}

void start_with_pools() {
  start_decay_once();
  if (start_neighbour_channel(*served, decay_step.count() == 0)) return;
  CUPOOL_LOG(info, "cannot start the thread that answers other processes that lack memory");
}

}  // namespace

void start_housekeeping(engine::Allocator& allocator, const config::Settings& settings) {
  const bool preallocates = settings.prealloc.background && settings.prealloc.size.value != 0;
  served = &allocator;
  if (settings.pool_start == config::PoolStart::background) {
    allocator.preparation().start_pools_elsewhere(wake_starter);
  }
  decay_step = std::chrono::duration_cast<microseconds>(settings.decay) /
               static_cast<int>(engine::BlockCache::kDecaySteps);
  decay_is_chosen = is_chosen("CUPOOL_DECAY_MS");
  if (!preallocates) {
    allocator.host().when_it_caches(start_decay_once);
    return allocator.preparation().when_pools_serve(start_with_pools);
  }
  woken = make_woken();
  allocator.preparation().when_pools_serve(start_with_pools);
  if (!start_background("cupool-idle", run)) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_PREALLOC in the background: cannot start its thread, so the first allocation waits "
        "for it, and idle memory is kept. Check the limit of threads (ulimit -u)");
    if (decay_step.count() != 0) served->default_pools().keep_none();
    return;
  }
  allocator.preparation().preallocate_elsewhere(wake);
}

}  // namespace cupool::process
