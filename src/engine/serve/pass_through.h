// SPDX-License-Identifier: Apache-2.0
// Allocations and frees served by the driver. cupool records them for the report and for pointer
// queries.
#pragma once

#include <cstdint>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/ipc/imports.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/out_of_memory.h"
#include "util/clock.h"

namespace cupool::engine {

/// Thread-safe.
class PassThrough {
 public:
  PassThrough(ContextRegistry& registry, PointerMap& blocks, IpcImports& imports,
              FreePolicy& policy, IdleMemory& idle, OutOfMemory& out_of_memory)
      : registry_(registry),
        blocks_(blocks),
        imports_(imports),
        policy_(policy),
        idle_(idle),
        out_of_memory_(out_of_memory) {}

  /// Makes an allocation of `wanted` bytes that passes through. If it runs out of memory, repeats
  /// it after giving idle memory back, within `patience`. After a success, `bytes()` returns the
  /// bytes to count; `address` holds the real call's result.
  template <typename Bytes, typename Call>
  CUresult allocate(std::uint64_t wanted, const Bytes& bytes, const CUdeviceptr* address,
                    Patience& patience, const Call& real) {
    const std::uint64_t start = util::now_ns();
    CUresult result = real();
    if (result == CUDA_ERROR_OUT_OF_MEMORY && out_of_memory_.may_fit(wanted)) {
      result = out_of_memory_.retry(real, patience);
    }
    note_allocation(registry_.current(), result == CUDA_SUCCESS ? bytes() : 0, address, result,
                    start);
    return result;
  }

  /// Makes a free that passes through. Drops the allocation's record if the free succeeded.
  template <typename Call>
  CUresult free(CUdeviceptr address, const Call& real) {
    const std::uint64_t start = util::now_ns();
    Block* passed = take(address);
    registry_.current();  // a new context releases the orphans of a lost one first
    // The driver would free cupool's own memory, which the program does not own, and imported
    // memory, which is closed and never freed.
    const bool internal =
        passed == nullptr && (registry_.is_internal(address) || imports_.holds(address));
    constexpr HostReachable::Kind kManaged = HostReachable::Kind::managed;
    HostReachable& host_reachable = policy_.host_reachable();
    const auto managed = host_reachable.take(kManaged, address);
    const CUresult result = internal ? CUDA_ERROR_INVALID_VALUE : real();
    note_free(passed, result, start);
    if (managed && result != CUDA_SUCCESS) host_reachable.add(kManaged, address, *managed);
    return result;
  }

  /// The program has allocated managed memory. Kernels reach it, and it takes device memory when
  /// they do.
  void managed_allocated(CUdeviceptr address, std::uint64_t bytes);

 private:
  void note_allocation(Context* context, std::uint64_t bytes, const CUdeviceptr* address,
                       CUresult result, std::uint64_t start_ns);
  Block* take(CUdeviceptr address);
  void note_free(Block* passed, CUresult result, std::uint64_t start_ns);

  ContextRegistry& registry_;
  PointerMap& blocks_;
  IpcImports& imports_;
  FreePolicy& policy_;
  IdleMemory& idle_;
  OutOfMemory& out_of_memory_;
};

}  // namespace cupool::engine
