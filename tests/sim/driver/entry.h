// SPDX-License-Identifier: Apache-2.0
// What every exported function does first: count the call, refuse it outside the driver's life,
// inject a fault, take the world's lock, and resolve handles as the driver does.
#pragma once

#include <cuda.h>

#include "driver/calls.h"
#include "driver/world.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

/// Defines an exported function whose body is one call of an implementation.
#define SIM_DEFINE_AS(symbol, per_thread, needs, params, call)               \
  SIM_EXPORT symbol params {                                                 \
    ::cupool::sim::Entry in(::cupool::sim::Call::symbol, per_thread, needs); \
    return in.failed() ? in.result() : (call);                               \
  }
#define SIM_DEFINE(symbol, params, call) \
  SIM_DEFINE_AS(symbol, false, ::cupool::sim::Entry::Needs::init, params, call)
/// The same before cuInit.
#define SIM_DEFINE_ANY_TIME(symbol, params, call) \
  SIM_DEFINE_AS(symbol, false, ::cupool::sim::Entry::Needs::nothing, params, call)
/// A function and its twin for the per-thread default stream.
#define SIM_TWINS(symbol, twin, params, call) \
  SIM_DEFINE(symbol, params, call)            \
  SIM_DEFINE_AS(twin, true, ::cupool::sim::Entry::Needs::init, params, call)

namespace cupool::sim {

class Entry {
 public:
  enum class Needs { nothing, init };

  Entry(Call call, bool per_thread, Needs needs);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  bool failed() const { return result_ != CUDA_SUCCESS; }
  CUresult result() const { return result_; }
  Lock& lock() { return lock_; }

  /// The thread's current context; an error when there is none, it is gone or has failed.
  CUresult current(Context** context);
  /// CUDA_SUCCESS without a current context; an error when there is one that is gone or failed.
  CUresult current_if_any() const;
  /// The stream that a handle names for this call; looks at the current context only if needed.
  CUresult stream(CUstream handle, Stream** stream);
  CUresult event(CUevent handle, Event** event);
  CUresult device(CUdevice ordinal, Device** device);

  /// Timed mode: the call costs the host this long in all.
  void costs(uint64_t ns) { cost_ns_ += ns; }
  /// The call returns that much later, and nobody waits for it meanwhile.
  void takes(uint64_t ms) { pause_ms_ += ms; }

 private:
  bool per_thread_;
  CUresult result_ = CUDA_SUCCESS;
  Lock lock_;
  uint64_t began_ns_ = 0;
  uint64_t cost_ns_ = 0;
  uint64_t pause_ms_ = 0;
};

/// Submits to a stream, or adds to the capture that it takes part in.
CUresult perform(Stream& stream, CUgraphNodeType type, OpSpec spec);
/// The same for a kernel that may begin before the one before it in its stream has ended. In late
/// mode it does so at once.
CUresult perform_dependent(Entry& in, Stream& stream, OpSpec spec);

/// The thread's call returns some time after other threads can see what it did (return_ms).
void returns_late();
/// How many calls have done so, those that still pause included.
unsigned long long calls_that_returned_late();

/// The host waits for these operations; the context's sticky error, if any, is the result.
CUresult wait_for(Entry& in, Context& context, const std::vector<OpRef>& ops);

/// The calling thread's stack of contexts.
NamedContext current_context();
void set_current_context(NamedContext context);
bool push_context(NamedContext context);
bool pop_context(NamedContext* context);

/// What green contexts share with others.
CUresult retain_primary(Device& device);
CUresult release_primary(Entry& in, Device& device);
CUresult record_context_event(Entry& in, const NamedContext& context, CUevent event);

}  // namespace cupool::sim
