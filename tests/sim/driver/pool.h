// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory pools: one range of addresses that is backed in steps of 32 MiB, reused by
// the freeing stream at once and by others as the pool's reuse policies allow, and given back to
// the device at synchronisations. Steps and packing are as measured
// (docs/measurements/2026-11-22-h200-driver-facts.txt).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "driver/op.h"

namespace cupool::sim {

struct Device;
struct Stream;

class Pool {
 public:
  Pool(Device& device, const CUmemPoolProps& props);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Placement {
    uintptr_t address = 0;  ///< 0: out of memory
    OpRef after;            ///< internal dependency that the allocation has to wait for, or null
    size_t grown_bytes = 0;
  };

  /// Finds memory for the stream's next operation, growing the pool if nothing may be reused.
  Placement allocate(size_t bytes, Stream& stream);

  /// The block is free once `freed_by` has executed; null: now, for everybody.
  void release(uintptr_t address, size_t bytes, OpRef freed_by);

  /// Forgets the order of frees that the host has seen complete.
  void settle();
  /// Returns steps without live or unsettled blocks, down to `keep` reserved bytes.
  size_t trim(size_t keep);
  void trim_to_threshold() { trim(static_cast<size_t>(release_threshold)); }

  bool reachable_from(int device_ordinal) const;
  void set_access(int device_ordinal, CUmemAccess_flags flags) { access_[device_ordinal] = flags; }
  CUmemAccess_flags access(int device_ordinal) const;

  CUresult set_attribute(CUmemPool_attribute attribute, const void* value);
  CUresult get_attribute(CUmemPool_attribute attribute, void* value) const;

  CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(this); }
  Device& device() { return device_; }
  const Device& device() const { return device_; }
  const CUmemPoolProps& props() const { return props_; }
  size_t live_blocks() const { return live_blocks_; }

  unsigned long long id = 0;
  bool destroyed = false;  ///< lives on until its last block is freed
  bool exported = false;
  unsigned long long exporter_pool = 0;  ///< imported pools: the exporter's number for it
  int exporter_process = 0;
  bool imported() const { return exporter_process != 0; }
  uint64_t release_threshold = 0;

 private:
  struct Hole {
    size_t bytes = 0;
    OpRef freed_by;  ///< null: usable by everybody
  };

  enum class Reuse { no, yes, after };
  Reuse reuse(const Hole& hole, const Stream& stream, const Clock& clock, bool last_resort) const;
  Placement find(size_t bytes, const Stream& stream, const Clock& clock, bool last_resort);
  /// Backs more memory, next to holes that the stream may use.
  Placement grow(size_t bytes, const Stream& stream, const Clock& clock);
  /// Memory from `at` on: at least `least`, a step of 32 MiB if possible, `most` at most.
  size_t back(uintptr_t at, size_t least, size_t most);
  Placement place(uintptr_t address, size_t bytes);
  void merge();

  Device& device_;
  CUmemPoolProps props_;
  uintptr_t window_ = 0;  ///< addresses, as many as the device has memory
  size_t window_bytes_ = 0;
  std::map<uintptr_t, size_t> chunks_;  ///< what is backed, in steps of 32 MiB or less
  std::map<uintptr_t, Hole> holes_;     ///< what is backed and nobody's
  std::map<int, CUmemAccess_flags> access_;
  int follow_event_dependencies_ = 1;
  int allow_opportunistic_ = 1;
  int allow_internal_dependencies_ = 1;
  uint64_t mapped_ = 0;    ///< bytes of the segments
  uint64_t reserved_ = 0;  ///< mapped, and the rest of the last step
  uint64_t reserved_high_ = 0;
  uint64_t used_ = 0;
  uint64_t used_high_ = 0;
  size_t live_blocks_ = 0;
};

size_t pool_block_bytes(size_t requested);

}  // namespace cupool::sim
