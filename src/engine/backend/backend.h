// SPDX-License-Identifier: Apache-2.0
// The source of blocks: the driver's stream-ordered pools, or its cuMemAlloc.
#pragma once

#include <cstdint>

#include "engine/block/block.h"
#include "util/descriptor.h"

namespace cupool::engine {

class StreamStock;

/// A context as seen by a backend: its handle, and streams for pool memory.
class StreamSource {
 public:
  virtual CUcontext handle() const = 0;
  /// The calling thread's stream, created on first use. The context must be current.
  virtual CUresult thread_stream(CUstream* stream) = 0;
  /// The streams of all threads.
  virtual StreamStock& streams() = 0;

 protected:
  ~StreamSource() = default;
};

/// The data that another process needs to import a block of a pool.
struct SharedMemory {
  util::KnownFile pool_file;  ///< stands for the pool; owned by the backend
  std::uint64_t pool = 0;     ///< number of the pool in this process
  CUmemPoolPtrExportData pointer{};
};

/// One per device. Thread-safe. Calls keep the thread's capture mode and current context, and never
/// invalidate a capture.
class Backend {
 public:
  virtual BlockSource source() const = 0;

  /// Allocates `capacity` bytes, usable at once by every stream (I2). `context` must be current.
  virtual CUresult allocate(StreamSource& context, std::uint64_t capacity,
                            CUdeviceptr* address) = 0;

  /// As allocate(), as the last attempt before out of memory: also tries idle pool memory in
  /// fragments, and lets the pools take the last memory of the device.
  virtual CUresult allocate_last(StreamSource& context, std::uint64_t capacity,
                                 CUdeviceptr* address) = 0;

  /// Releases memory that the GPU no longer uses; makes `context` current meanwhile. False: the
  /// driver refused, because the context is gone. The driver then still owns the memory.
  virtual bool release(StreamSource& context, CUdeviceptr address) = 0;
  /// The same, where release() would wait for other work of the context, without that wait. Not
  /// during a capture, nor where somebody notices the end of memory by cuMemFree. False: not
  /// possible; the memory is still there.
  virtual bool release_in_stream(StreamSource&, CUdeviceptr) { return false; }

 protected:
  ~Backend() = default;
};

}  // namespace cupool::engine
