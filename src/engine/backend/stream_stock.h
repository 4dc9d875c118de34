// SPDX-License-Identifier: Apache-2.0
// The streams on which cupool allocates and frees pool memory. Nothing else runs on them, and they
// never wait (I2).
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "cuda/driver.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// cupool's streams in a context. Threads share a small number, since each stream makes the
/// program's synchronisation of the context slower (measured on an H100: 0.15 us and more).
/// Thread-safe.
class StreamStock {
 public:
  /// A stream for a thread without one: an unused stream, else a new one by `create(&stream)`, or,
  /// at the maximum number, the stream with the fewest threads.
  template <typename Create>
  CUresult take(const Create& create, CUstream* stream) {
    if (take_used(stream)) return CUDA_SUCCESS;
    const CUresult result = create(stream);
    if (result == CUDA_SUCCESS) add(*stream);
    return result;
  }
  void put_back(CUstream stream);
  std::vector<CUstream> all();

  /// Makes spare streams by `create(&stream)`, one for each of the streams above, until one is
  /// refused. A spare is only kept to be destroyed, so that the program gets its memory.
  template <typename Create>
  void make_spares(const Create& create) {
    while (begin_spare()) {
      CUstream created = nullptr;
      if (create(&created) != CUDA_SUCCESS) created = nullptr;
      end_spare(created);
      if (created == nullptr) return;
    }
  }
  /// A spare stream, no longer kept and not replaced. Null: none.
  CUstream take_spare();

  /// The context is gone, with all streams.
  void clear();

  static constexpr std::size_t kStreams = 4;

 private:
  struct Shared {
    CUstream stream;
    unsigned threads;
  };
  bool take_used(CUstream* stream);
  void add(CUstream created);
  bool begin_spare();
  void end_spare(CUstream created);

  util::Ranked<util::LockRank::stream_stock> mutex_;
  std::vector<Shared> all_;
  std::vector<CUstream> spares_;
  std::size_t spares_made_ = 0;  ///< including those being made, and those taken
};

}  // namespace cupool::engine
