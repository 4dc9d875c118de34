// SPDX-License-Identifier: Apache-2.0
// Where a pool finds memory: first fit by address over the holes whose free is ordered before the
// new owner's stream, by one of the policies that cuda.h documents (CU_MEMPOOL_ATTR_REUSE_*).
#include "driver/pool.h"

#include <algorithm>
#include <cstdint>

#include "driver/context.h"
#include "driver/device.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

constexpr size_t kGrowth = size_t{32} << 20;  // docs/measurements/2026-11-22-h200-driver-facts.txt

}  // namespace

size_t pool_block_bytes(size_t requested) {
  return round_up(requested, kAlignment);
}

Pool::Pool(Device& device, const CUmemPoolProps& props) : device_(device), props_(props) {
  id = ++world().last_id;
  window_bytes_ = round_up(device.total, kGrowth);
  window_ = device.arena.reserve(window_bytes_);
}

Pool::~Pool() {
  if (window_ != 0) device_.arena.unreserve(window_, window_bytes_);
}

Pool::Reuse Pool::reuse(const Hole& hole, const Stream& stream, const Clock& clock,
                        bool last_resort) const {
  const OpRef& freed_by = hole.freed_by;
  if (freed_by == nullptr || is_of(*freed_by, stream)) return Reuse::yes;
  if (follow_event_dependencies_ != 0 && covers(clock, freed_by->at)) return Reuse::yes;
  // The driver has seen the free complete, whoever else has not: the allocation comes after it.
  if (allow_opportunistic_ != 0 && world().engine.finished({freed_by})) return Reuse::after;
  if (allow_internal_dependencies_ != 0 && last_resort) return Reuse::after;
  return Reuse::no;
}

Pool::Placement Pool::find(size_t bytes, const Stream& stream, const Clock& clock,
                           bool last_resort) {
  for (const auto& entry : holes_) {
    const Hole& hole = entry.second;
    if (hole.bytes < bytes) continue;
    const Reuse how = reuse(hole, stream, clock, last_resort);
    if (how == Reuse::no) continue;
    const OpRef after = how == Reuse::after ? hole.freed_by : nullptr;
    Placement placement = place(entry.first, bytes);
    placement.after = after;
    return placement;
  }
  return {};
}

Pool::Placement Pool::place(uintptr_t address, size_t bytes) {
  const auto hole = holes_.find(address);
  Hole rest = hole->second;
  holes_.erase(hole);
  rest.bytes -= bytes;
  if (rest.bytes != 0) holes_.emplace(address + bytes, rest);
  Placement placement;
  placement.address = address;
  return placement;
}

size_t Pool::back(uintptr_t at, size_t least, size_t most) {
  const size_t limit = props_.maxSize != 0 ? round_up(props_.maxSize, kGrowth) : SIZE_MAX;
  for (const size_t wanted : {round_up(least, kGrowth), round_up(least, kChunkBytes)}) {
    const size_t bytes = std::min(wanted, most);
    if (bytes < least || reserved_ + bytes > limit || !device_.take_at(at, bytes)) continue;
    for (size_t done = 0; done < bytes; done += kGrowth) {
      chunks_[at + done] = std::min(kGrowth, bytes - done);
    }
    reserved_ += bytes;
    reserved_high_ = std::max(reserved_high_, reserved_);
    return bytes;
  }
  return 0;
}

// Looks at every stretch without memory, the open end last, together with the holes beside it:
// blocks lie across steps (measured: ten blocks of 50 MiB take 512 MiB, without gaps).
Pool::Placement Pool::grow(size_t bytes, const Stream& stream, const Clock& clock) {
  if (window_ == 0) return {};
  uintptr_t gap = window_;
  for (auto chunk = chunks_.begin();; ++chunk) {
    const uintptr_t gap_end = chunk == chunks_.end() ? window_ + window_bytes_ : chunk->first;
    const size_t gap_bytes = gap_end - gap;
    if (gap_bytes != 0) {
      size_t before = 0;
      auto hole = holes_.lower_bound(gap);
      if (hole != holes_.begin()) {
        --hole;
        const bool adjacent = hole->first + hole->second.bytes == gap;
        if (adjacent && reuse(hole->second, stream, clock, false) == Reuse::yes) {
          before = hole->second.bytes;
        }
      }
      if (before + gap_bytes >= bytes) {
        const size_t grown = back(gap, bytes - before, gap_bytes);
        if (grown == 0) return {};
        if (before != 0) holes_.erase(gap - before);
        holes_[gap - before] = Hole{before + grown, nullptr};
        Placement placement = place(gap - before, bytes);
        placement.grown_bytes = grown;
        merge();
        return placement;
      }
    }
    if (chunk == chunks_.end()) return {};
    gap = chunk->first + chunk->second;
  }
}

Pool::Placement Pool::allocate(size_t requested, Stream& stream) {
  if (requested > device_.total) return {};
  const size_t bytes = pool_block_bytes(requested);
  const Clock clock = clock_of(stream);
  Placement placement = find(bytes, stream, clock, false);
  if (placement.address == 0) placement = find(bytes, stream, clock, true);
  if (placement.address == 0) placement = grow(bytes, stream, clock);
  if (placement.address == 0) {
    settle();
    trim(0);  // scattered idle steps of this very pool are no reason to fail
    placement = grow(bytes, stream, clock);
  }
  if (placement.address == 0) return placement;
  used_ += bytes;
  used_high_ = std::max(used_high_, used_);
  ++live_blocks_;
  return placement;
}

void Pool::release(uintptr_t address, size_t requested, OpRef freed_by) {
  const size_t bytes = pool_block_bytes(requested);
  holes_[address] = Hole{bytes, std::move(freed_by)};
  merge();
  used_ -= bytes;
  --live_blocks_;
}

void Pool::merge() {
  auto hole = holes_.begin();
  while (hole != holes_.end()) {
    const auto next = std::next(hole);
    if (next == holes_.end()) return;
    const OpRef& a = hole->second.freed_by;
    const OpRef& b = next->second.freed_by;
    const bool same_stream = a != nullptr && b != nullptr && a->at.timeline == b->at.timeline;
    if (hole->first + hole->second.bytes == next->first && (a == b || same_stream)) {
      if (same_stream && b->at.number > a->at.number) hole->second.freed_by = b;
      hole->second.bytes += next->second.bytes;
      holes_.erase(next);
    } else {
      hole = next;
    }
  }
}

void Pool::settle() {
  const Clock& host = world().engine.host_clock();
  for (auto& hole : holes_) {
    OpRef& freed_by = hole.second.freed_by;
    if (freed_by != nullptr && freed_by->done() && covers(host, freed_by->at)) freed_by = nullptr;
  }
  merge();
}

size_t Pool::trim(size_t keep) {
  size_t given = 0;
  const bool sharable = props_.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  if (sharable && world().settings.pool_ipc == PoolIpc::keeps) return 0;
  for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
    const uintptr_t at = chunk->first;
    const size_t bytes = chunk->second;
    auto hole = holes_.upper_bound(at);
    const bool any = hole != holes_.begin();
    if (any) --hole;
    const bool idle =
        any && hole->second.freed_by == nullptr && hole->first + hole->second.bytes >= at + bytes;
    if (!idle || reserved_ <= keep || reserved_ - bytes < keep) {
      ++chunk;
      continue;
    }
    const uintptr_t first = hole->first;
    const uintptr_t end = first + hole->second.bytes;
    holes_.erase(hole);
    if (first < at) holes_[first].bytes = at - first;
    if (at + bytes < end) holes_[at + bytes].bytes = end - at - bytes;
    device_.give_at(at, bytes);
    reserved_ -= bytes;
    given += bytes;
    chunk = chunks_.erase(chunk);
  }
  return given;
}

bool Pool::reachable_from(int device_ordinal) const {
  return access(device_ordinal) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUmemAccess_flags Pool::access(int device_ordinal) const {
  const auto it = access_.find(device_ordinal);
  if (it != access_.end()) return it->second;
  if (imported()) return CU_MEM_ACCESS_FLAGS_PROT_NONE;  // the importer asks for it
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
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Pool::get_attribute(CUmemPool_attribute attribute, void* value) const {
  auto number = [&](uint64_t n) { return *static_cast<cuuint64_t*>(value) = n, CUDA_SUCCESS; };
  auto flag = [&](int n) { return *static_cast<int*>(value) = n, CUDA_SUCCESS; };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return flag(follow_event_dependencies_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return flag(allow_opportunistic_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return flag(allow_internal_dependencies_);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return number(release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return number(reserved_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return number(reserved_high_);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return number(used_);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return number(used_high_);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace cupool::sim
