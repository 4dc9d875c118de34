// SPDX-License-Identifier: Apache-2.0
// Without the C library's exp() and log(): the library is linked with nothing but libc.
#include "trace/site_sampling.h"

#include <algorithm>

namespace cupool::trace {

namespace {

double uniform(std::uint64_t* random) {
  return static_cast<double>(next_random(random) >> 11) * 0x1p-53;
}

// Exponentially distributed with mean 1, from comparisons alone (von Neumann, 1951): the first of a
// falling run of uniform numbers counts if the run is of odd length, else the next whole number
// begins. Two to three runs on average.
double exponential(std::uint64_t* random) {
  for (double whole = 0;; whole += 1) {
    const double first = uniform(random);
    double last = first;
    bool is_odd = true;
    for (double next = uniform(random); next < last; next = uniform(random)) {
      last = next;
      is_odd = !is_odd;
    }
    if (is_odd) return whole + first;
  }
}

// 1 - exp(-x), also for tiny x, where the difference would lose all digits.
double one_less_exp(double x) {
  if (x > 64) return 1;
  if (x > 0.25) {
    const double half = one_less_exp(x / 2);
    return half * (2 - half);
  }
  double term = x;
  double sum = 0;
  for (int n = 2; n < 14; ++n) {
    sum += term;
    term *= -x / n;
  }
  return sum;
}

}  // namespace

void SamplingPace::sampled(std::uint64_t since_ns, std::uint64_t spent_ns) noexcept {
  since_ns_ += since_ns;
  spent_ns_ += spent_ns;
  ++samples_;
  // Of a program that allocates less than before, few samples tell as much.
  const bool has_time_for_all = since_ns_ / kShare > spent_ns_ / samples_ * kSamples;
  if (samples_ < kSamples && !has_time_for_all) return;
  const double cost = static_cast<double>(spent_ns_ * kShare) /
                      static_cast<double>(std::max<std::uint64_t>(since_ns_, 1));
  const double wanted = static_cast<double>(interval_) * std::clamp(cost, 1 / 64.0, 64.0);
  interval_ = std::clamp(static_cast<std::uint64_t>(wanted), first_, std::max(first_, kWidest));
  since_ns_ = spent_ns_ = samples_ = 0;
}

std::uint64_t next_random(std::uint64_t* random) noexcept {
  std::uint64_t bits = *random += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

std::uint64_t draw_distance(std::uint64_t* random, std::uint64_t interval) noexcept {
  return 1 + static_cast<std::uint64_t>(exponential(random) * static_cast<double>(interval));
}

double probability_of_sample(std::uint64_t bytes, std::uint64_t interval) noexcept {
  return one_less_exp(static_cast<double>(bytes) / static_cast<double>(interval));
}

}  // namespace cupool::trace
