// Sleeping to points in time, not for durations: samples do not drift.
#include "process/sampler.h"

#include <errno.h>
#include <time.h>

#include "cuda/scopes.h"
#include "process/background.h"
#include "process/context_visits.h"
#include "util/clock.h"

namespace cupool::process {
namespace {

// A program that allocates all the time does not get a sample's thread to itself.
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

// The pools' figures of now, after what is held: a pool that grows meanwhile has never less than
// that. False if memory came or went meanwhile, so that the two are not of one moment.
bool ask_pools(core::Allocator& allocator, stats::Sample* sample) {
  bool of_one_moment = true;
  for (core::Device* device : allocator.registry().devices()) {
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

// In relaxed capture mode and by way of the real functions: no capture of the program notices.
bool ask_free_memory(core::Allocator& allocator, const cuda::Driver& driver,
                     stats::DeviceSample* sample) {
  for (core::Context* context : allocator.registry().contexts_of(sample->ordinal)) {
    if (!context->usable()) continue;
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
  expect_context_visits();
  return start_background("cupool-sample", run);
}

stats::Sample take_sample(core::Allocator& allocator, bool ask_driver) {
  const cuda::Driver* driver = ask_driver ? cuda::driver() : nullptr;
  allocator.fold_statistics();
  stats::Sample sample = stats::sample_figures();
  if (driver == nullptr) return sample;
  for (int i = 1; !ask_pools(allocator, &sample) && i < kTriesForOneMoment; ++i) {
    sample = stats::sample_figures();
  }
  const ContextVisit visit;
  if (!visit.allowed()) return sample;
  for (stats::DeviceSample& device : sample.devices) {
    device.has_device_memory = ask_free_memory(allocator, *driver, &device);
  }
  return sample;
}

}  // namespace cupool::process
