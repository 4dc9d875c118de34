// SPDX-License-Identifier: Apache-2.0
// Sleeps until points in time, not for durations: samples do not drift.
#include "process/sampler.h"

#include <errno.h>
#include <time.h>

#include "cuda/scopes.h"
#include "process/background.h"
#include "process/background_visits.h"
#include "util/clock.h"

namespace cupool::process {
namespace {

// Bounds the work of a sample in a program that allocates all the time.
constexpr int kTriesForOneMoment = 4;

std::uint64_t interval_ns = 0;
bool (*take)() = nullptr;

void sleep_until(std::uint64_t deadline_ns) {
  timespec until{};
  until.tv_sec = static_cast<time_t>(deadline_ns / 1'000'000'000u);
  until.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000u);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void* run(void*) {
  std::uint64_t next = util::now_ns();
  while (take()) {
    const std::uint64_t now = util::now_ns();
    next += interval_ns;
    if (next < now) next += (now - next) / interval_ns * interval_ns + interval_ns;
    sleep_until(next);
  }
  return nullptr;
}

// The pools' current figures, read after the held bytes: a pool that grows in between never has
// less than those. False if memory came or went in between, so that the two do not belong to one
// moment.
bool ask_pools(engine::Allocator& allocator, stats::Sample* sample) {
  bool of_one_moment = true;
  for (engine::Device* device : allocator.registry().devices().all()) {
    const stats::PoolFigures pool = device->pool_figures();
    device->stats().set_pool_figures(pool);
    for (stats::DeviceSample& each : sample->devices) {
      if (each.ordinal != device->ordinal()) continue;
      each.pool = pool;
      const std::int64_t held = device->stats().value(stats::Gauge::held_bytes).current;
      of_one_moment =
          of_one_moment && held == each.gauges[static_cast<std::size_t>(stats::Gauge::held_bytes)];
    }
  }
  return of_one_moment;
}

// In relaxed capture mode and by the real functions, so that no capture of the program is affected.
bool ask_free_memory(engine::Allocator& allocator, const cuda::Driver& driver,
                     stats::DeviceSample* sample) {
  for (engine::Context* context : allocator.registry().contexts_of(sample->ordinal)) {
    const engine::ContextVisit inside(*context, engine::kShortNs);
    if (!inside || !context->usable()) continue;
    const cuda::RelaxedCaptureScope relaxed(driver);
    const cuda::ContextScope scope(driver, context->handle());
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    if (!scope.ok() || driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) continue;
    sample->device_free_bytes = free_bytes;
    sample->device_total_bytes = total_bytes;
    return true;
  }
  return false;
}

}  // namespace

bool sample_every(std::chrono::milliseconds interval, bool (*sample)()) {
  interval_ns = static_cast<std::uint64_t>(interval.count()) * 1'000'000u;
  take = sample;
  return start_background("cupool-sample", run);
}

stats::Sample take_sample(engine::Allocator& allocator, bool ask_driver) {
  const cuda::Driver* driver = ask_driver ? cuda::driver() : nullptr;
  allocator.figures().fold();
  stats::Sample sample = stats::sample_figures();
  if (driver == nullptr) return sample;
  for (int i = 1; !ask_pools(allocator, &sample) && i < kTriesForOneMoment; ++i) {
    sample = stats::sample_figures();
  }
  const BackgroundVisit visit;
  if (!visit.allowed()) return sample;
  for (stats::DeviceSample& device : sample.devices) {
    device.has_device_memory = ask_free_memory(allocator, *driver, &device);
  }
  return sample;
}

}  // namespace cupool::process
