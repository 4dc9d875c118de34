// Where a pool finds memory: first fit by address over the holes whose free is ordered before the
// new owner's stream, by one of the policies that cuda.h documents (CU_MEMPOOL_ATTR_REUSE_*).
#include "driver/pool.h"

#include <algorithm>

#include "driver/context.h"
#include "driver/device.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kGrowth = size_t{32} << 20;  // facts.md, Times: "grows by 32 MiB"

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

size_t pool_block_bytes(size_t requested) { return round_up(requested, kAlignment); }

Pool::Pool(Device& device, const CUmemPoolProps& props) : device_(device), props_(props) {
  id = ++world().last_id;
}

Pool::Reuse Pool::reuse(const Hole& hole, const Stream& stream, const Clock& clock,
                        bool last_resort) const {
  const OpRef& freed_by = hole.freed_by;
  if (freed_by == nullptr || freed_by->at.timeline == stream.timeline) return Reuse::yes;
  if (follow_event_dependencies_ != 0 && covers(clock, freed_by->at)) return Reuse::yes;
  if (allow_opportunistic_ != 0 && world().engine.finished({freed_by})) return Reuse::yes;
  if (allow_internal_dependencies_ != 0 && last_resort) return Reuse::after;
  return Reuse::no;
}

Pool::Placement Pool::find(size_t bytes, const Stream& stream, const Clock& clock,
                           bool last_resort) {
  Placement placement;
  for (auto& entry : segments_) {
    auto& holes = entry.second.holes;
    for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
      if (hole->second.bytes < bytes) continue;
      const Reuse how = reuse(hole->second, stream, clock, last_resort);
      if (how == Reuse::no) continue;
      placement.address = hole->first;
      if (how == Reuse::after) placement.after = hole->second.freed_by;
      Hole rest = hole->second;
      rest.bytes -= bytes;
      holes.erase(hole);
      if (rest.bytes != 0) holes.emplace(placement.address + bytes, rest);
      return placement;
    }
  }
  return placement;
}

bool Pool::grow(size_t bytes, size_t* grown) {
  const size_t least = round_up(bytes, kChunkBytes);
  for (const size_t step : {round_up(bytes, kGrowth), least}) {
    if (props_.maxSize != 0 && reserved_ + step > round_up(props_.maxSize, kGrowth)) continue;
    const uintptr_t address = device_.take(step);
    if (address == 0) continue;
    Segment& segment = segments_[address];
    segment.bytes = step;
    segment.holes[address].bytes = step;
    reserved_ += step;
    reserved_high_ = std::max(reserved_high_, reserved_);
    *grown = step;
    return true;
  }
  return false;
}

Pool::Placement Pool::allocate(size_t requested, Stream& stream) {
  if (requested > device_.total) return {};
  const size_t bytes = pool_block_bytes(requested);
  const Clock clock = clock_of(stream);
  Placement placement = find(bytes, stream, clock, false);
  if (placement.address == 0) placement = find(bytes, stream, clock, true);
  size_t grown = 0;
  if (placement.address == 0) {
    bool room = grow(bytes, &grown);
    if (!room) {
      settle();
      trim(0);  // fragmented idle segments of this very pool are no reason to fail
      room = grow(bytes, &grown);
    }
    if (room) placement = find(bytes, stream, clock, false);
  }
  if (placement.address == 0) return placement;
  placement.grown_bytes = grown;
  used_ += bytes;
  used_high_ = std::max(used_high_, used_);
  ++live_blocks_;
  return placement;
}

void Pool::release(uintptr_t address, size_t requested, OpRef freed_by) {
  const size_t bytes = pool_block_bytes(requested);
  auto segment = std::prev(segments_.upper_bound(address));
  segment->second.holes[address] = Hole{bytes, std::move(freed_by)};
  merge(segment->second);
  used_ -= bytes;
  --live_blocks_;
}

void Pool::merge(Segment& segment) {
  auto hole = segment.holes.begin();
  while (hole != segment.holes.end()) {
    const auto next = std::next(hole);
    if (next == segment.holes.end()) return;
    const OpRef& a = hole->second.freed_by;
    const OpRef& b = next->second.freed_by;
    const bool same_stream = a != nullptr && b != nullptr && a->at.timeline == b->at.timeline;
    if (hole->first + hole->second.bytes == next->first && (a == b || same_stream)) {
      if (same_stream && b->at.number > a->at.number) hole->second.freed_by = b;
      hole->second.bytes += next->second.bytes;
      segment.holes.erase(next);
    } else {
      hole = next;
    }
  }
}

void Pool::settle() {
  const Clock& host = world().engine.host_clock();
  for (auto& entry : segments_) {
    for (auto& hole : entry.second.holes) {
      OpRef& freed_by = hole.second.freed_by;
      if (freed_by != nullptr && freed_by->done() && covers(host, freed_by->at)) freed_by = nullptr;
    }
    merge(entry.second);
  }
}

size_t Pool::trim(size_t keep) {
  size_t given = 0;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const Segment& segment = it->second;
    const bool idle = segment.holes.size() == 1 &&
                      segment.holes.begin()->second.bytes == segment.bytes &&
                      segment.holes.begin()->second.freed_by == nullptr;
    if (!idle || reserved_ <= keep || reserved_ - segment.bytes < keep) {
      ++it;
      continue;
    }
    device_.give(it->first, segment.bytes);
    reserved_ -= segment.bytes;
    given += segment.bytes;
    it = segments_.erase(it);
  }
  return given;
}

bool Pool::reachable_from(int device_ordinal) const {
  return access(device_ordinal) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUmemAccess_flags Pool::access(int device_ordinal) const {
  const auto it = access_.find(device_ordinal);
  if (it != access_.end()) return it->second;
  return device_ordinal == device_.ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

CUresult Pool::set_attribute(CUmemPool_attribute attribute, const void* value) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      follow_event_dependencies_ = *static_cast<const int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      allow_opportunistic_ = *static_cast<const int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      allow_internal_dependencies_ = *static_cast<const int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      release_threshold = *static_cast<const cuuint64_t*>(value);
      return CUDA_SUCCESS;
    // cuda.h: the high watermarks can be reset, to zero only.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (*static_cast<const cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      reserved_high_ = reserved_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<const cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      used_high_ = used_;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Pool::get_attribute(CUmemPool_attribute attribute, void* value) const {
  auto number = [&](uint64_t n) { return *static_cast<cuuint64_t*>(value) = n, CUDA_SUCCESS; };
  auto flag = [&](int n) { return *static_cast<int*>(value) = n, CUDA_SUCCESS; };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return flag(follow_event_dependencies_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return flag(allow_opportunistic_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return flag(allow_internal_dependencies_);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return number(release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return number(reserved_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return number(reserved_high_);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return number(used_);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return number(used_high_);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace cupool::sim
