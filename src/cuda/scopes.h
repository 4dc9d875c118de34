// SPDX-License-Identifier: Apache-2.0
// Scopes around driver calls: they make a context current, or a thread's capture mode relaxed, and
// restore the program's state.
#pragma once

#include "cuda/driver.h"
#include "cuda/errors.h"

namespace cupool::cuda {

/// How often a scope tries again to restore the program's state.
constexpr int kRestoreAttempts = 3;

/// Makes `context` current on this thread for a scope, unless it already is. ok() is false if the
/// driver refused; then nothing has changed, and result() is its answer.
class ContextScope {
 public:
  ContextScope(const Driver& driver, CUcontext context) : driver_(driver), context_(context) {
    CUcontext current = nullptr;
    result_ = driver_.cuCtxGetCurrent(&current);
    if (!ok()) result_ = driver_.cuCtxGetCurrent(&current);  // a failure here is cupool's own
    if (!ok() || current == context) return;
    result_ = driver_.cuCtxPushCurrent_v2(context);
    if (!ok()) result_ = driver_.cuCtxPushCurrent_v2(context);  // likewise
    pushed_ = ok();
  }
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (!pushed_ || driver_.cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS) return;
    // A failure may be of earlier work, and may be transient. Below lies another context.
    for (int attempt = 0; attempt < kRestoreAttempts; ++attempt) {
      CUcontext current = nullptr;
      if (driver_.cuCtxGetCurrent(&current) != CUDA_SUCCESS) continue;
      if (current != context_ || driver_.cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS) return;
    }
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  bool ok() const { return result_ == CUDA_SUCCESS; }
  CUresult result() const { return result_; }
  /// The same as far as it says something of `context`: a sticky error may be that of the context
  /// which was current before.
  CUresult result_of_context() const {
    return is_sticky(result_) ? CUDA_ERROR_INVALID_CONTEXT : result_;
  }

 private:
  const Driver& driver_;
  CUcontext context_;
  bool pushed_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

/// Puts the thread into relaxed capture mode for a scope. While the program captures a stream in
/// global mode, calls such as event queries and allocations are refused and break the capture. In
/// relaxed mode they succeed and the capture survives (docs/design.md, I3).
///
/// So the calls within are cupool's own. Libraries that hook the driver are called back from them,
/// and ask about memory; the thread may then hold locks of the engine.
class RelaxedCaptureScope {
 public:
  /// Whether the calling thread is in such a scope.
  static bool is_open() { return depth_ != 0; }

  explicit RelaxedCaptureScope(const Driver& driver) : driver_(driver) {
    ++depth_;
    if (driver_.cuThreadExchangeStreamCaptureMode == nullptr) return;
    exchanged_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedCaptureScope() {
    --depth_;
    if (!exchanged_) return;
    // A refusal may be transient. Without a retry, this thread would stay in relaxed mode for good.
    for (int attempt = 0; attempt <= kRestoreAttempts; ++attempt) {
      if (driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) return;
    }
  }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  static inline thread_local unsigned depth_ = 0;

  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

}  // namespace cupool::cuda
