// SPDX-License-Identifier: Apache-2.0
// Keeps a thread of the program from being cancelled inside cupool (pthread_cancel): no function of
// CUDA is a cancellation point, and the unwinding would leave records of a wait behind, or meet a
// noexcept function and end the process.
#pragma once

#include <pthread.h>

namespace cupool::util {

/// Around what waits or uses a file: a cancellation of the calling thread waits for its next
/// cancellation point afterwards. Nests.
class Uncancelled {
 public:
  Uncancelled() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace cupool::util
