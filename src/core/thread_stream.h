// The stream of the calling thread in a context, on which it takes memory from the driver's pools
// and gives it back. Nothing else ever runs on it and it never waits for anything (I2).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/driver.h"

namespace cupool::core {

class Context;

/// The streams of cupool in a context. Those of threads that have ended are idle and used again, so
/// that threads that come and go do not make streams without end. Thread-safe.
class StreamStock {
 public:
  /// An idle stream, or null.
  CUstream take_idle();
  void put_idle(CUstream stream);
  void add(CUstream created);
  std::vector<CUstream> all();
  void clear();

 private:
  std::mutex mutex_;
  std::vector<CUstream> all_;
  std::vector<CUstream> idle_;
};

/// The calling thread's stream in `context`, taken from its stock or created (non-blocking) on
/// first use. `context` is current.
CUresult thread_stream(const cuda::Driver& driver, Context& context, CUstream* stream);

}  // namespace cupool::core
