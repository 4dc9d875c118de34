// SPDX-License-Identifier: Apache-2.0
// The streams on which cupool allocates and frees pool memory. Nothing else runs on them, and they
// never wait (I2).
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

#include "cuda/driver.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// cupool's streams in a context. Threads share a small number, since each stream makes the
/// program's synchronisation of the context slower (measured on an H100: 0.15 us and more).
/// Thread-safe. Needs no host memory, without which a stream would be nobody's.
class StreamStock {
 public:
  static constexpr std::size_t kStreams = 4;

  /// Some streams. Not thread-safe.
  class Streams {
   public:
    const CUstream* begin() const { return streams_.data(); }
    const CUstream* end() const { return streams_.data() + count_; }
    std::size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    void push(CUstream stream) { streams_[count_++] = stream; }
    CUstream pop() { return streams_[--count_]; }
    void clear() { count_ = 0; }

   private:
    std::array<CUstream, kStreams> streams_{};
    std::size_t count_ = 0;
  };

  /// A stream for a thread without one: an unused stream, else a new one by `create(&stream)`, or,
  /// at the maximum number, the stream with the fewest threads. One that several threads together
  /// have created beyond that number goes to `destroy(stream)`.
  template <typename Create, typename Destroy>
  CUresult take(const Create& create, const Destroy& destroy, CUstream* stream) {
    if (take_used(stream)) return CUDA_SUCCESS;
    CUstream created = nullptr;
    const CUresult result = create(&created);
    if (result != CUDA_SUCCESS) return result;
    if (!take_created(created, stream)) destroy(created);
    return CUDA_SUCCESS;
  }
  void put_back(CUstream stream);
  Streams all();

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

 private:
  struct Shared {
    CUstream stream = nullptr;
    unsigned threads = 0;
  };
  bool take_used(CUstream* stream);
  // The created stream, or a shared one if it is beyond the maximum: false.
  bool take_created(CUstream created, CUstream* stream);
  // The stream with the fewest threads, or null.
  Shared* least_locked();
  bool begin_spare();
  void end_spare(CUstream created);

  util::Ranked<util::LockRank::stream_stock> mutex_;
  std::array<Shared, kStreams> all_;
  std::size_t count_ = 0;  ///< of all_
  Streams spares_;
  std::size_t spares_made_ = 0;  ///< including those being made, and those taken
};

}  // namespace cupool::engine
