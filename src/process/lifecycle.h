// SPDX-License-Identifier: Apache-2.0
// What happens once a process (contract 11 and 13, I6). The engine starts with the first use of the
// GPU and stops for good in a forked child. The report is written when the process ends.
#pragma once

#include <atomic>

#include "cuda/driver.h"
#include "engine/serve/allocator.h"
#include "observe/observer.h"

namespace cupool::process {

namespace detail {
inline std::atomic<engine::Allocator*> running{nullptr};
engine::Allocator* start();
}  // namespace detail

/// The running engine, else null: not started, disabled, or stopped in a forked child or after the
/// driver has shut down. Two atomic loads. Thread-safe.
inline engine::Allocator* engine() {
  engine::Allocator* live = detail::running.load(std::memory_order_acquire);
  return live != nullptr && !cuda::shut_down() ? live : nullptr;
}

/// The engine, started at the first use of the GPU; null as for engine(). To be called only from
/// allocations and captures: by then the driver is initialised, and its exit handlers are
/// registered before cupool's. Thread-safe.
inline engine::Allocator* started_engine() {
  engine::Allocator* live = engine();
  return live != nullptr ? live : detail::start();
}

/// The observer, if CUPOOL_MODE=observe and the process has used the GPU, else null. With an
/// observer there is no engine: both engine() and started_engine() are null. One atomic load.
observe::Observer* observer();

/// False with CUPOOL_ENABLE=0 or CUPOOL_MODE=off, or if another copy of this library serves: then
/// no symbol is substituted.
bool enabled();

/// To be called at exit. In a signal handler, where any lock may stay held, the driver answers
/// everything from now on, and the result is true.
bool stop_if_interrupted();

/// Writes the report of this process, unless it was written or no GPU memory was allocated.
/// `driver_is_up`: the driver may still be asked for its figures.
void report_once(bool driver_is_up);

/// As report_once(true), but ends the process with `status` after two seconds. `_exit` may be
/// called in a signal handler that interrupted a holder of the heap's lock.
void report_before_exit(int status);

}  // namespace cupool::process
