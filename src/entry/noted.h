// SPDX-License-Identifier: Apache-2.0
// Around a driver call whose work may touch host memory, for which a free has to wait (contract 2).
#pragma once

#include <optional>

#include "engine/reclaim/host_work_calls.h"
#include "engine/reclaim/pinned_memory.h"
#include "engine/reclaim/stream_use.h"
#include "process/lifecycle.h"

namespace cupool::entry {

/// From before the driver's call on `stream` until its work is noted. `is_seen`: whether another
/// thread may see the work before the call returns.
class CallToNote {
 public:
  explicit CallToNote(CUstream stream, bool is_seen = true)
      : in_use_(stream), call_(is_seen ? calls_of(stream) : nullptr) {}

 private:
  static engine::HostWorkCalls* calls_of(CUstream stream);

  const engine::StreamUse in_use_;
  const engine::HostWorkCalls::Call call_;
};

inline engine::HostWorkCalls* CallToNote::calls_of(CUstream stream) {
  engine::Allocator* const allocator = process::engine();
  if (allocator == nullptr) return &engine::HostWorkCalls::early();
  engine::Context* const context = allocator->streams().context_of(stream);
  return context == nullptr ? &engine::HostWorkCalls::early() : &context->host_work().calls();
}

/// Whether another thread may see the work before the call returns, as far as a free waits for it.
/// `seen` may ask the driver. Nobody does before the engine has started, nor in a forked child.
template <typename Seen>
bool may_be_seen(const Seen& seen) {
  engine::Allocator* const allocator = process::engine();
  return allocator == nullptr || (allocator->policy().waits_for_host_work() && seen());
}

/// The driver's call on `stream` has returned `result`. `touches_host` is called only if its answer
/// matters.
template <typename TouchesHost>
void note(CUstream stream, const TouchesHost& touches_host, CUresult result) {
  if (result != CUDA_SUCCESS) return;
  // Starts the engine too: a copy may be the program's first use of the GPU, and a free the second.
  engine::Allocator* const allocator = process::started_engine();
  if (allocator != nullptr && allocator->policy().waits_for_host_work() && touches_host()) {
    allocator->streams().host_work_submitted(stream);
  }
}

/// Launches a kernel by `call`. One with the address of page-locked memory among its arguments is
/// noted as work that touches host memory. `stream` is an explicit handle.
template <typename Call>
CUresult launch_noted(const cuda::Driver& real, CUstream stream, CUfunction function,
                      void** parameters, void** extra, const Call& call) {
  if (__builtin_expect(!engine::PinnedMemory::any(), 1) ||
      !engine::PinnedMemory::is_argument(real, function, parameters, extra)) {
    return call();
  }
  const CallToNote under_way(stream);
  const CUresult result = call();
  note(
      stream, [] { return true; }, result);
  return result;
}

}  // namespace cupool::entry
