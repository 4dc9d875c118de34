// What happens once a process: the engine starts with the first use of the GPU, stops for good in a
// forked child, and its report is written when the process leaves.
#pragma once

#include <atomic>

#include "core/allocator.h"
#include "core/observer.h"
#include "cuda/driver.h"

namespace cupool::process {

namespace detail {
inline std::atomic<core::Allocator*> running{nullptr};
core::Allocator* start();
}  // namespace detail

/// The engine if it runs, else null: not started, switched off, or stopped in a forked child or
/// after the driver has shut down. Two atomic loads. Thread-safe.
inline core::Allocator* engine() {
  core::Allocator* live = detail::running.load(std::memory_order_acquire);
  return live != nullptr && !cuda::shut_down() ? live : nullptr;
}

/// The engine, started if this is the first use of the GPU; null as engine(). To be called from
/// allocations and captures only: by then the driver is initialised, and its exit handlers are
/// registered before ours. Thread-safe.
inline core::Allocator* started_engine() {
  core::Allocator* live = engine();
  return live != nullptr ? live : detail::start();
}

/// The observer, if CUPOOL_MODE=observe and the process has been seen to use the GPU, else null.
/// There is no engine then: both engine() and started_engine() are null. One atomic load.
core::Observer* observer();

/// False where CUPOOL_ENABLE=0 or CUPOOL_MODE=off: no symbol is substituted.
bool enabled();

/// Writes the report of this process if it has not been written and GPU memory was allocated.
/// `driver_is_up`: the driver may still be asked for its figures.
void report_once(bool driver_is_up);

/// As report_once(true), but gives up, by leaving the process with `status`, when it has not ended
/// after two seconds: `_exit` may be called in a signal handler that interrupted the heap's lock.
void report_before_exit(int status);

}  // namespace cupool::process
