// Stream-ordered memory pools: reserved in steps of 32 MiB, reused by the freeing stream at once
// and by others as the pool's reuse policies allow, given back to the device at synchronisations.
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
  /// Returns segments without live or unsettled blocks, down to `keep` reserved bytes.
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
  struct Segment {
    size_t bytes = 0;
    std::map<uintptr_t, Hole> holes;
  };

  enum class Reuse { no, yes, after };
  Reuse reuse(const Hole& hole, const Stream& stream, const Clock& clock, bool last_resort) const;
  Placement find(size_t bytes, const Stream& stream, const Clock& clock, bool last_resort);
  bool grow(size_t bytes, size_t* grown);
  void merge(Segment& segment);

  Device& device_;
  CUmemPoolProps props_;
  std::map<uintptr_t, Segment> segments_;
  std::map<int, CUmemAccess_flags> access_;
  int follow_event_dependencies_ = 1;
  int allow_opportunistic_ = 1;
  int allow_internal_dependencies_ = 1;
  uint64_t reserved_ = 0;
  uint64_t reserved_high_ = 0;
  uint64_t used_ = 0;
  uint64_t used_high_ = 0;
  size_t live_blocks_ = 0;
};

size_t pool_block_bytes(size_t requested);

}  // namespace cupool::sim
