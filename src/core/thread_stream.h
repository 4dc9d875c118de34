// The stream of the calling thread in a context, on which it takes memory from the driver's pools
// and gives it back. Nothing else ever runs on it and it never waits for anything (I2).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/driver.h"

namespace cupool::core {

class Context;

/// Streams of a context that no thread uses at the moment: those of threads that have ended. So
/// threads that come and go do not make streams without end. Thread-safe.
class StreamStock {
 public:
  CUstream take();
  void put(CUstream stream);
  void clear();

 private:
  std::mutex mutex_;
  std::vector<CUstream> streams_;
};

/// The calling thread's stream in `context`, taken from its stock or created (non-blocking) on
/// first use. `context` is current.
CUresult thread_stream(const cuda::Driver& driver, Context& context, CUstream* stream);

}  // namespace cupool::core
