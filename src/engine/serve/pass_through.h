// SPDX-License-Identifier: Apache-2.0
// Allocations and frees served by the driver. cupool records them for the report and for pointer
// queries.
#pragma once

#include <cstdint>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/ipc/imports.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/default_pools.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/out_of_memory.h"
#include "util/clock.h"

namespace cupool::engine {

/// Thread-safe.
class PassThrough {
 public:
  PassThrough(const cuda::Driver& driver, ContextRegistry& registry, PointerMap& blocks,
              IpcImports& imports, FreePolicy& policy, IdleMemory& idle, OutOfMemory& out_of_memory,
              DefaultPools& default_pools, AsyncMemory& async)
      : driver_(driver),
        registry_(registry),
        blocks_(blocks),
        imports_(imports),
        policy_(policy),
        idle_(idle),
        out_of_memory_(out_of_memory),
        default_pools_(default_pools),
        async_(async) {}

  /// Makes an allocation of `wanted` bytes that passes through. If it runs out of memory, repeats
  /// it after giving idle memory back, within `patience`. After a success, `bytes()` returns the
  /// bytes to count; `address` holds the real call's result.
  template <typename Bytes, typename Call>
  CUresult allocate(std::uint64_t wanted, const Bytes& bytes, const CUdeviceptr* address,
                    Patience& patience, const Call& real) {
    const std::uint64_t start = util::now_ns();
    Context* const context = registry_.current();
    const std::uint64_t life = context == nullptr ? 0 : context->incarnation();
    patience.wants(wanted);
    out_of_memory_.before_driver_call(context, wanted);
    CUresult result = real();
    if (result == CUDA_ERROR_OUT_OF_MEMORY && OutOfMemory::may_fit(registry_.current(), wanted)) {
      result = out_of_memory_.retry(real, patience);
    }
    note_allocation(registry_.current(), result == CUDA_SUCCESS ? bytes() : 0, address, result,
                    start);
    if (result != CUDA_SUCCESS) idle_.driver_refused(context, life, result);
    return result;
  }

  /// Makes a free that passes through. Drops the allocation's record if the free succeeded.
  template <typename Call>
  CUresult free(CUdeviceptr address, const Call& real) {
    const std::uint64_t start = util::now_ns();
    const Taken passed = take(address);
    Context* const context = registry_.current();  // a new one releases a lost one's orphans first
    const std::uint64_t life = context == nullptr ? 0 : context->incarnation();
    // The driver would free cupool's own memory, which the program does not own, and imported
    // memory, which is closed and never freed.
    const bool internal =
        passed.block == nullptr && (registry_.is_internal(address) || imports_.holds(address));
    const auto freed = [&] {
      return internal ? CUDA_ERROR_INVALID_VALUE : async_.free_by_driver(address, real);
    };
    const CUresult result =
        policy_.host_reachable().end(HostReachable::Kind::managed, address, freed);
    note_free(passed, result, start);
    if (result != CUDA_SUCCESS) idle_.driver_refused(context, life, result);
    return result;
  }

  /// The program has allocated managed memory. Kernels reach it, and it takes device memory when
  /// they do.
  void managed_allocated(CUdeviceptr address, std::uint64_t bytes);
  /// The program uses a pool of managed memory.
  void managed_pool_used();

  /// The program has requested `device`, a device pointer of page-locked memory: kernels reach that
  /// memory from now on. `is_zero_copy` tells whether that is known already.
  void zero_copy_requested(CUdeviceptr device);
  bool is_zero_copy(CUdeviceptr device) {
    return policy_.host_reachable().any(HostReachable::Kind::zero_copy) &&
           policy_.host_reachable().holds(HostReachable::Kind::zero_copy, start_of(device));
  }

  /// Frees or unregisters the page-locked memory at `host`. No kernel reaches it afterwards.
  template <typename Call>
  CUresult free_host(void* host, const Call& real) {
    // Memory of cupool's own is not the program's to free.
    if (registry_.is_internal(reinterpret_cast<CUdeviceptr>(host))) return CUDA_ERROR_INVALID_VALUE;
    return unregister_host(host, real);
  }
  template <typename Call>
  CUresult unregister_host(void* host, const Call& real) {
    constexpr HostReachable::Kind kKind = HostReachable::Kind::zero_copy;
    HostReachable& host_reachable = policy_.host_reachable();
    if (!host_reachable.any(kKind)) return real();
    CUdeviceptr device = 0;
    const CUresult asked = driver_.cuMemHostGetDevicePointer_v2(&device, host, 0);
    // A thread without a context: under unified addressing it is the address itself.
    if (asked == CUDA_ERROR_INVALID_CONTEXT) device = reinterpret_cast<CUdeviceptr>(host);
    const bool known = asked == CUDA_SUCCESS || asked == CUDA_ERROR_INVALID_CONTEXT;
    return known ? host_reachable.end(kKind, start_of(device), real) : real();
  }

 private:
  void note_allocation(Context* context, std::uint64_t bytes, const CUdeviceptr* address,
                       CUresult result, std::uint64_t start_ns);
  // A record that is not in the map during the driver's free.
  struct Taken {
    Block* block = nullptr;  ///< null: not passed through
    std::uint64_t life = 0;  ///< of its context; 0: that has ended before
  };
  Taken take(CUdeviceptr address);
  void note_free(const Taken& passed, CUresult result, std::uint64_t start_ns);
  void put_back(const Taken& passed);
  void record(Block* block);
  static void forget(Block* replaced);
  std::uintptr_t start_of(CUdeviceptr device) const;

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  PointerMap& blocks_;
  IpcImports& imports_;
  FreePolicy& policy_;
  IdleMemory& idle_;
  OutOfMemory& out_of_memory_;
  DefaultPools& default_pools_;
  AsyncMemory& async_;
};

}  // namespace cupool::engine
