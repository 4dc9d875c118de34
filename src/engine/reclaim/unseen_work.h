// SPDX-License-Identifier: Apache-2.0
// Looks for work that reaches the GPU by no hooked route while the process is in one lane
// (engine/reclaim/lane.h). From time to time an event of the context is recorded, and then one of
// the lane's stream. If the second is complete and the first is still pending milliseconds later,
// another stream has work, and the lane is none.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/driver.h"

namespace cupool::engine {

/// One state for the process. Thread-safe: a call beside another one does nothing.
class UnseenWork {
 public:
  /// Called in the lane, when a mark is recorded. True: there is such work.
  static bool look(const cuda::Driver& driver, CUcontext context, CUstream stream,
                   std::uint64_t now_ns);
  /// As at the start of the process, or when the context of the events is about to end.
  static void reset();

 private:
  enum class Step : std::uint8_t { record, stream, context };

  static bool record(const cuda::Driver& driver, CUcontext context, CUstream stream);
  static void next(Step step, std::uint64_t at_ns);

  static inline std::atomic<bool> busy_{false};
  // Under `busy_`:
  static inline Step step_ = Step::record;
  static inline std::atomic<std::uint64_t> next_ns_{0};  ///< time of the next step
  static inline unsigned looks_ = 0;                     ///< that found the context's event pending
  static inline CUevent of_context_ = nullptr;
  static inline CUevent of_stream_ = nullptr;
};

}  // namespace cupool::engine
