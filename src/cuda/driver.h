// SPDX-License-Identifier: Apache-2.0
// The table of the driver's real functions, taken from the libcuda that the program itself loaded.
// This library never loads a driver: a process without CUDA stays one.
#pragma once

#include <atomic>

#include "cuda/api.h"

namespace cupool::cuda {

/// The real functions by exported symbol. Null: missing in this driver.
struct Driver {
  int version = 0;  ///< of cuDriverGetVersion: 12050 is CUDA 12.5; 0 before cuInit
#define FN(symbol, parameters) CUresult(*symbol) parameters = nullptr;
#include "cuda/functions.def"
#undef FN

  /// The real function with this exported name if it is in the table, else null.
  void* find(const char* symbol) const;
};

namespace detail {
inline std::atomic<const Driver*> loaded{nullptr};
inline std::atomic<bool> is_shut_down{false};
const Driver* load();
}  // namespace detail

/// The table, or null while the process has no libcuda.so.1 loaded. Loaded once; thread-safe.
inline const Driver* driver() {
  const Driver* table = detail::loaded.load(std::memory_order_acquire);
  return table != nullptr ? table : detail::load();
}

/// Records that a driver call returned CUDA_ERROR_DEINITIALIZED: the driver has shut down, and
/// cupool calls no CUDA function any more (I6). Thread-safe.
void note_shut_down();
/// Waits for a stream of cupool's, so that a trim takes what was freed there. A refusal may pass,
/// so a second attempt is made. Thread-safe.
void wait_for_stream(const Driver& driver, CUstream stream);
/// Asks the driver whether it has shut down, as it does while another thread leaves the process: no
/// trouble to warn of. Thread-safe.
bool has_shut_down(const Driver& driver);
inline bool shut_down() {
  return detail::is_shut_down.load(std::memory_order_relaxed);
}

}  // namespace cupool::cuda
