// SPDX-License-Identifier: Apache-2.0
// The capturing streams of a context. The lock held for recording a fence is also held while a
// capture begins or ends, so that no fence is recorded into a capture (I3).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <vector>

#include "cuda/driver.h"
#include "engine/reclaim/barriers.h"
#include "engine/reclaim/ordering_mutex.h"
#include "engine/reclaim/serving.h"

namespace cupool::engine {

/// Part of an Ordering; takes its lock. Thread-safe, except for functions in the section under the
/// lock.
class Captures {
 public:
  Captures(OrderingMutex& mutex, Barriers& barriers) : mutex_(mutex), barriers_(barriers) {
    streams_.reserve(kUsual);
  }

  /// Runs `begin`, the driver's begin of a capture, while no fence is recorded and cupool does not
  /// synchronise the context. Records the stream as capturing if it succeeded. The caller handles
  /// other contexts (StreamContexts::begin_capture()).
  template <typename Call>
  CUresult begin(CUstream stream, const Call& begin) {
    OrderingLock lock(mutex_);
    let_synchronisations_in(lock);
    barriers_.ensure_spare();
    const bool is_listed = has_place();
    const CUresult result = begin();
    if (result == CUDA_SUCCESS) {
      is_listed ? streams_.push_back(key_of(stream)) : void(++unlisted_);
      Serving::capture_begins();
    }
    return result;
  }

  /// Runs `end` (the end of the capture, or the destruction of the stream). Then drops the stream
  /// unless `still_capturing`.
  template <typename Call, typename Query>
  CUresult end(CUstream stream, const Call& end, const Query& still_capturing) {
    const OrderingGuard lock(mutex_);
    const CUresult result = end();
    if (!still_capturing()) forget_stream(stream);
    return result;
  }

  /// Runs `call` while no capture of the process begins that could reach a stream of the context.
  /// Not if there is one.
  template <typename Call>
  void hold_off(const Call& call) {
    const OrderingGuard lock(mutex_);
    if (!Serving::any_capture()) call();
  }

  bool has(CUstream stream) const;

  /// Returns once every thread that is about to record a fence or to synchronise the context has
  /// seen the captures counted before this call (Serving::capture_begins()).
  void let_fences_in();

  /// Drops all captures, which ended with the context; for a context that cannot be abandoned. No
  /// effect while a thread holds the lock.
  void forget();

  // Under the lock:

  /// Whether a stream of the context has begun a capture. Streams that joined are not known.
  bool any() const { return !streams_.empty() || unlisted_ != 0; }

  /// Whether a thread is about to begin a capture.
  bool is_beginning() const { return beginning_ != 0; }

  /// Around a synchronisation of the context by cupool: a capture that begins meanwhile waits for
  /// its end, for a limited time.
  void synchronisation_begins() { ++synchronising_; }
  void synchronisation_ends();

  /// The context is gone.
  void abandon();

 private:
  /// A capturing stream. The meaning of CU_STREAM_PER_THREAD depends on the thread.
  struct StreamKey {
    CUstream stream;
    const void* thread;
    bool operator==(const StreamKey& other) const {
      return stream == other.stream && thread == other.thread;
    }
  };
  static StreamKey key_of(CUstream stream);

  // Simultaneous captures of a program; beyond, the list takes host memory.
  static constexpr std::size_t kUsual = 8;

  bool has_place();
  void let_synchronisations_in(OrderingLock& lock);
  void forget_stream(CUstream stream);

  OrderingMutex& mutex_;
  Barriers& barriers_;
  std::vector<StreamKey> streams_;
  std::size_t unlisted_ = 0;    ///< captures of which nobody can tell when they end
  unsigned beginning_ = 0;      ///< threads about to begin a capture
  unsigned synchronising_ = 0;  ///< threads that synchronise the context for cupool
  std::condition_variable_any synchronised_;
};

}  // namespace cupool::engine
