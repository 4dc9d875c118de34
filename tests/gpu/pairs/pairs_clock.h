// SPDX-License-Identifier: Apache-2.0
// The clock of single calls in pairs.cu: the cycle counter where there is one (tens of cycles, no
// system call on any virtual machine), else the steady clock. What reading it costs is measured and
// printed, never subtracted.
#pragma once

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "common/gpu_test.h"

namespace pairs {

// The fence keeps the calls before from still being under way when the counter is read.
inline uint64_t ticks() {
#if defined(__x86_64__)
  _mm_lfence();
  return __rdtsc();
#else
  return static_cast<uint64_t>(gpu_test::Clock::now().time_since_epoch().count());
#endif
}

// Both clocks side by side over 20 ms.
inline double ns_per_tick() {
#if defined(__x86_64__)
  const auto begin = gpu_test::Clock::now();
  const uint64_t first = ticks();
  while (gpu_test::seconds_since(begin) < 0.02) {
  }
  const uint64_t last = ticks();
  return gpu_test::seconds_since(begin) * 1e9 / static_cast<double>(last - first);
#else
  using Period = gpu_test::Clock::period;
  return 1e9 * Period::num / Period::den;
#endif
}

// Nanoseconds of sorted samples at a share of 1, nearest rank.
inline double quantile(const std::vector<uint64_t>& sorted, double share, double scale) {
  if (sorted.empty()) return 0.0;
  const auto rank = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return static_cast<double>(sorted[std::min(rank, sorted.size() - 1)]) * scale;
}

// p50, p99, p99.9 and maximum of one kind of call, as a "time" line.
inline void print_latencies(const char* name, std::vector<uint64_t>* samples, double scale) {
  std::sort(samples->begin(), samples->end());
  std::printf("time %s_samples=%zu %s_p50_ns=%.1f %s_p99_ns=%.1f %s_p999_ns=%.1f %s_max_ns=%.1f\n",
              name, samples->size(), name, quantile(*samples, 0.5, scale), name,
              quantile(*samples, 0.99, scale), name, quantile(*samples, 0.999, scale), name,
              quantile(*samples, 1.0, scale));
}

// Points of the curve of a kind of call, each share twice as near to 1 as the one before.
inline void print_curve(const char* name, const std::vector<uint64_t>& sorted, double scale) {
  std::printf("time");
  for (int halvings = 1; halvings <= 16; ++halvings) {
    std::printf(" %s_tail%d_ns=%.1f", name, halvings,
                quantile(sorted, 1.0 - 1.0 / static_cast<double>(1 << halvings), scale));
  }
  std::printf("\n");
}

// The same of nothing at all: what the clock adds to each sample, and how still the machine is.
inline void print_timer(double scale) {
  std::vector<uint64_t> samples(100000);
  for (uint64_t& sample : samples) {
    const uint64_t begin = ticks();
    sample = ticks() - begin;
  }
  std::sort(samples.begin(), samples.end());
  std::printf("time timer_p50_ns=%.1f timer_p999_ns=%.1f timer_max_ns=%.1f\n",
              quantile(samples, 0.5, scale), quantile(samples, 0.999, scale),
              quantile(samples, 1.0, scale));
}

}  // namespace pairs
