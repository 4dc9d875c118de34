// SPDX-License-Identifier: Apache-2.0
// The program's queries about its memory (contract 6), and the attributes that it sets.
#pragma once

#include <array>
#include <atomic>
#include <optional>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/ipc/imports.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/found_memory.h"
#include "engine/serve/host_blocks.h"
#include "stats/device_stats.h"
#include "trace/watch.h"

namespace cupool::engine {

/// Thread-safe.
class PointerQueries {
 public:
  PointerQueries(const cuda::Driver& driver, ContextRegistry& registry, PointerMap& blocks,
                 IpcImports& imports, HostBlocks& host, AsyncMemory& async)
      : driver_(driver),
        registry_(registry),
        blocks_(blocks),
        imports_(imports),
        host_(host),
        async_(async) {}

  /// Whether a block of cupool begins at `address`, in any state.
  bool holds(CUdeviceptr address) const;
  /// Whether a block of cupool or a passed-through allocation begins at `address`.
  bool knows(CUdeviceptr address) const { return blocks_.find(address) != nullptr; }

  /// The memory that contains `address`, as the program sees it.
  FoundMemory find(CUdeviceptr address) {
    const FoundMemory pinned = host_.find_around(address);
    return pinned.served() || pinned.nobodys ? pinned : find(base_of(address), address);
  }
  /// As find(), if the driver has given the memory's start as `base`.
  FoundMemory find(CUdeviceptr base, CUdeviceptr address);

  /// The context that the driver would find for the memory at `address` if it was of cuMemAlloc:
  /// of a live pool block, or of one of another process. Null: the driver finds it itself.
  CUcontext context_of_pool_memory(CUdeviceptr address);

  /// The program's memory that begins at `address`, served by cupool or by the driver.
  std::optional<trace::Memory> memory_at(CUdeviceptr address) const;

  /// How memory is known outside CUDA's ordering. descriptor: it stays reachable after the free.
  enum class KnownBy { address, descriptor };
  /// Until the program frees it, or until the driver does, whatever the program frees in between.
  enum class KnownUntil { freed, driver_frees };

  /// Marks the block that contains `address` as known outside CUDA's ordering (RDMA, SYNC_MEMOPS).
  /// Such a block is released when freed, and the driver's pool clears the attribute. A block of a
  /// pool that is known by a descriptor is set aside. Plain memory that is known until the driver
  /// frees it stays as it is.
  void mark_shared_outside(CUdeviceptr address, KnownBy by, KnownUntil until);

  /// The size of a pitched allocation.
  struct Pitched {
    std::uint64_t pitch;
    std::uint64_t bytes;
  };
  /// `rows` rows of `width` bytes, padded as the driver pads them. `std::nullopt`: the driver has
  /// to answer; not known before its first answer on a device, none without rows, or too large.
  std::optional<Pitched> known_layout(std::uint64_t width, std::uint64_t rows);
  void learn_pitch(std::uint64_t width, std::uint64_t pitch);

 private:
  /// Start of the block of cupool that contains `address`. If there is none, the driver's answer,
  /// or `address` itself.
  CUdeviceptr base_of(CUdeviceptr address) const;
  /// The live block of cupool that begins at `base`, or null.
  const Block* live_block(CUdeviceptr base) const;
  /// Whether a block that the program has freed, or that has outlived its context, begins at
  /// `base`.
  bool is_freed_block(CUdeviceptr base) const;

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  PointerMap& blocks_;
  IpcImports& imports_;
  HostBlocks& host_;
  AsyncMemory& async_;
  std::array<std::atomic<std::uint64_t>, stats::kMaxDevices> pitch_units_{};
};

}  // namespace cupool::engine
