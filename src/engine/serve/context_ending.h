// SPDX-License-Identifier: Apache-2.0
// The end of a context (I8): keeps threads out of it, and drops all records of its memory.
#pragma once

#include <mutex>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/context/primary_contexts.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/imports.h"
#include "engine/reclaim/lane.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/host_memory.h"
#include "engine/serve/out_of_memory.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// Thread-safe.
class ContextEnding {
 public:
  ContextEnding(const cuda::Driver& driver, ContextRegistry& registry, PointerMap& blocks,
                IpcExports& exports, IpcImports& imports, FreePolicy& policy, HostMemory& host,
                AsyncMemory& async, OutOfMemory& out_of_memory, PrimaryContexts& primaries)
      : driver_(driver),
        registry_(registry),
        blocks_(blocks),
        exports_(exports),
        imports_(imports),
        policy_(policy),
        host_(host),
        async_(async),
        out_of_memory_(out_of_memory),
        primaries_(primaries) {}

  /// Makes a call that may end `context` (null: a context cupool does not serve). If
  /// `has_ended(result)`, drops everything that belonged to it. No thread visits the context
  /// meanwhile. `alive`: the driver has not ended it yet.
  template <typename Call, typename HasEnded>
  CUresult end(Context* context, const Call& real, const HasEnded& has_ended, bool alive = true) {
    if (context == nullptr) return real();
    if (alive) {
      out_of_memory_.context_ends(*context);
      async_.idle().before_end(*context);
    }
    const ContextEnd end(*context);
    if (alive) {
      context->threads().points().wait(driver_);
      async_.idle().context_ends(*context);
    } else {
      context->threads().points().forget();
    }
    // The driver may reuse the handle as soon as the context has ended.
    registry_.forget_found();
    const CUresult result = real();
    if (has_ended(result)) context_gone(*context, end.alone());
    return result;
  }

  /// Makes a call that destroys the context with this handle if it succeeds.
  template <typename Call>
  CUresult destroy(CUcontext handle, const Call& call) {
    return end(registry_.find(handle), call,
               [](CUresult result) { return result == CUDA_SUCCESS; });
  }

  /// Makes a call that releases the primary context of `device`. Only the last release waits for
  /// visitors; an earlier one may still be the driver's last.
  template <typename Call>
  CUresult release_primary(CUdevice device, const Call& call) {
    const auto lock = primaries_.lock(device);
    const auto release = [&] { return primaries_.release(device, call); };
    if (primaries_.at_last_reference(device)) return end_primary(device, release);
    const CUresult result = release();
    if (result == CUDA_SUCCESS && !PrimaryContexts::is_active(driver_, device)) {
      const CUcontext primary = primaries_.known(device);
      if (primary != nullptr) Lane::context_ends(nullptr, primary);
      end(
          registry_.find(primary), [] { return CUDA_SUCCESS; }, [](CUresult) { return true; },
          false);
    }
    return result;
  }

  /// Makes a call that resets the primary context of `device`.
  template <typename Call>
  CUresult reset_primary(CUdevice device, const Call& call) {
    const auto lock = primaries_.lock(device);
    return end_primary(device, call);
  }

  /// Drops everything that belonged to `context`, which the driver has ended. `alone`: see
  /// ContextEnd.
  void context_gone(Context& context, bool alone = true);

 private:
  // Under the lock of the device's primary context.
  template <typename Call>
  CUresult end_primary(CUdevice device, const Call& call) {
    const CUcontext primary = primaries_.active(driver_, device);
    Context* const context = primary == nullptr ? nullptr : registry_.find(primary);
    if (primary != nullptr) Lane::context_ends(&driver_, primary);
    return end(context, call, [&](CUresult result) {
      return result == CUDA_SUCCESS && !PrimaryContexts::is_active(driver_, device);
    });
  }
  void leave_context(Context& context);
  void leave_device(Device& device);
  void forget_host_reachable();

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  PointerMap& blocks_;
  IpcExports& exports_;
  IpcImports& imports_;
  FreePolicy& policy_;
  HostMemory& host_;
  AsyncMemory& async_;
  OutOfMemory& out_of_memory_;
  PrimaryContexts& primaries_;
  util::Ranked<util::LockRank::context_end>
      ending_mutex_;  ///< serialises the clean-up after a context's end
};

}  // namespace cupool::engine
