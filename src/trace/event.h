// SPDX-License-Identifier: Apache-2.0
// The trace's record of one call: enough to replay it.
#pragma once

#include <cstdint>

namespace cupool::trace {

/// What kind of memory a call is about.
enum class MemoryKind : std::uint8_t {
  device,          ///< of cudaMalloc
  page_locked,     ///< of cudaMallocHost and cudaHostAlloc
  managed,         ///< of cudaMallocManaged
  stream_ordered,  ///< of cudaMallocAsync
};

enum class Action : std::uint8_t {
  allocate,          ///< a successful allocation; the time is the end of the call
  allocate_failure,  ///< the call returned an error
  free,              ///< a free; the time is the begin of the call
  free_done,         ///< the duration of that free; not needed by a replay
  free_refused,      ///< instead: the free was refused, and the memory is live as before
};

/// The kind's name in reports.
constexpr const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::page_locked:
      return "page_locked";
    case MemoryKind::managed:
      return "managed";
    case MemoryKind::stream_ordered:
      return "stream_ordered";
    default:
      return "device";
  }
}

struct Event {
  std::uint64_t time_ns = 0;      ///< monotonic, see util/clock.h; increases in each thread
  std::uint64_t duration_ns = 0;  ///< of an allocation or free_done, ending at time_ns
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  int tid = 0;
  int device = -1;
  Action action = Action::allocate;
  MemoryKind kind = MemoryKind::device;
};

}  // namespace cupool::trace
