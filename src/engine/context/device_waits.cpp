// SPDX-License-Identifier: Apache-2.0
// Two counts of threads, and what a stream's flags say.
#include "engine/context/device_waits.h"

#include <atomic>

#include "cuda/stream_kind.h"
#include "util/mutation.h"

namespace cupool::engine {
namespace {

using thread_work::State;
using thread_work::Stream;
using Kind = Stream::Kind;

// If more threads than this go from stream to stream, they wait on the host.
constexpr unsigned kThreadsOnDevice = 4;

// Threads that have gone from one stream to another across a free.
std::atomic<unsigned> alternating{0};

// Threads that have submitted work. Not counted down: who comes next may be held up like the last.
std::atomic<unsigned> submitting{0};
thread_local bool is_counted = false;

}  // namespace

void DeviceWaits::thread_submits() {
  if (is_counted) return;
  is_counted = true;
  submitting.fetch_add(1, std::memory_order_relaxed);
}

void DeviceWaits::learn_kind(const cuda::Driver& driver, Stream& stream) {
  if (stream.kind != Kind::unknown) return;
  if (const auto is_alone = cuda::is_non_blocking(driver, stream.handle)) {
    stream.kind = *is_alone ? Kind::non_blocking : Kind::blocking;
  }
}

bool DeviceWaits::hold_up_queues(State& state) {
  if (!state.alternates) {
    state.alternates = true;
    alternating.fetch_add(1, std::memory_order_relaxed);
  }
  return alternating.load(std::memory_order_relaxed) > kThreadsOnDevice;
}

bool DeviceWaits::hold_up_streams(const Stream& stream, bool is_own_point) {
  if (submitting.load(std::memory_order_relaxed) <= 1) return false;
  if (!is_own_point && !CUPOOL_MUTATED("holds-up-other-contexts")) return true;
  return stream.kind != Kind::non_blocking && !CUPOOL_MUTATED("holds-up-the-legacy-stream");
}

void DeviceWaits::thread_ends(const State& state) {
  if (state.alternates) alternating.fetch_sub(1, std::memory_order_relaxed);
}

void DeviceWaits::reset() {
  alternating = 0;
  submitting = 0;
  is_counted = false;
}

}  // namespace cupool::engine
