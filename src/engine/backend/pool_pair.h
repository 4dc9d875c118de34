// SPDX-License-Identifier: Apache-2.0
// The pools themselves: two of cupool's own per device, so that small blocks do not pin large
// chunks and large blocks are 2 MiB aligned; or the device's default pool in both roles.
#pragma once

#include <atomic>
#include <bitset>
#include <mutex>

#include "cuda/driver.h"
#include "engine/backend/pool_device.h"
#include "engine/backend/pool_kind.h"
#include "engine/backend/pool_sharing.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// Each pool is created on first use and never destroyed. Thread-safe.
class PoolPair {
 public:
  PoolPair(const cuda::Driver& driver, const PoolDevice& device)
      : driver_(driver), device_(device), sharing_(driver, device) {}

  /// The pool of `kind`, created if needed, which uses `stream`. `stream` must carry only work of
  /// pools.
  CUresult get(PoolKind kind, CUstream stream, CUmemoryPool* pool);
  /// The pool of `kind`, or null if it was not created.
  CUmemoryPool created(PoolKind kind) const {
    return pools_[index_of(kind)].load(std::memory_order_acquire);
  }

  /// Device `peer` has come into use: gives it access to the pools if possible.
  void admit(int peer);
  /// Whether a device in use was refused access. Copies to it would write nothing.
  bool is_refused_to_peer() const { return peer_refused_.load(std::memory_order_relaxed); }

  /// Trims the pools: gives idle memory to the device, as far as the driver can. The pool of large
  /// blocks keeps `keep_large` bytes.
  void trim(std::uint64_t keep_large = 0) const;

  /// The driver's figures of the pools. Never waits.
  stats::PoolFigures figures() const;
  /// Bytes that the pools have reserved; 0 if the driver does not say.
  std::uint64_t reserved() const;
  /// Remembers what the pools have reserved: one has grown, or was trimmed.
  void see_reserved() const;
  /// What see_reserved() last saw, of both pools or of one. Do not ask the driver.
  std::uint64_t reserved_seen() const;
  std::uint64_t reserved_seen(PoolKind kind) const {
    return reserved_seen_[index_of(kind)].load(std::memory_order_relaxed);
  }
  /// Bytes that the pools have reserved but not allocated; 0 if the driver does not say. Needs
  /// fewer queries than figures().
  std::uint64_t slack() const;
  /// Bytes that may be idle beside live blocks, in growth steps that cannot go back to the device:
  /// one step of each pool.
  std::uint64_t pinned_bytes() const;

  PoolSharing& sharing() { return sharing_; }

 private:
  CUresult create(PoolKind kind, CUstream stream, CUmemoryPool* pool);
  CUresult create_with(CUmemAllocationHandleType handle, CUmemoryPool* pool) const;
  void configure(PoolKind kind, CUmemoryPool pool);
  void set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value,
                     const char* option) const;
  void grant(PoolKind kind, CUmemoryPool pool, int peer);
  // Visits each pool once, until `visit` returns false.
  template <typename Visit>
  void visit_each(const Visit& visit) const;

  bool decompresses() const;

  const cuda::Driver& driver_;
  const PoolDevice device_;
  util::Ranked<util::LockRank::pool_creation> create_mutex_;
  std::atomic<CUmemoryPool> pools_[kPoolKinds] = {};
  mutable std::atomic<std::uint64_t> reserved_seen_[kPoolKinds] = {};
  std::bitset<stats::kMaxDevices> admitted_[kPoolKinds];  ///< guarded by create_mutex_
  std::atomic<bool> peer_refused_{false};
  PoolSharing sharing_;
};

}  // namespace cupool::engine
