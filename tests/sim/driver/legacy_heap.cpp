// SPDX-License-Identifier: Apache-2.0
// First fit by address, so that freed addresses come back as soon as possible: an adversary for
// whoever reuses memory before the device is done with it.
#include "driver/legacy_heap.h"

#include "driver/device.h"

namespace cupool::sim {

uintptr_t LegacyHeap::take_hole(uintptr_t base, size_t bytes) {
  Chunk& chunk = chunks_.at(base);
  for (auto hole = chunk.holes.begin(); hole != chunk.holes.end(); ++hole) {
    if (hole->second < bytes) continue;
    const uintptr_t address = hole->first;
    const size_t rest = hole->second - bytes;
    chunk.holes.erase(hole);
    if (rest != 0) chunk.holes.emplace(address + bytes, rest);
    if (chunk.holes.empty()) with_holes_.erase(base);
    chunk.live += bytes;
    return address;
  }
  return 0;
}

uintptr_t LegacyHeap::allocate(Device& device, size_t bytes, bool* grew) {
  *grew = false;
  if (bytes >= kChunkBytes) {
    if (bytes > device.total) return 0;
    const size_t held = round_up(bytes, kChunkBytes);
    const uintptr_t address = device.take(held);
    if (address != 0) large_.emplace(address, held);
    *grew = true;
    return address;
  }
  bytes = round_up(bytes, kAlignment);
  for (const uintptr_t base : with_holes_) {
    if (const uintptr_t address = take_hole(base, bytes)) return address;
  }
  const uintptr_t base = device.take(kChunkBytes);
  if (base == 0) return 0;
  *grew = true;
  chunks_[base].holes.emplace(base, kChunkBytes);
  with_holes_.insert(base);
  return take_hole(base, bytes);
}

bool LegacyHeap::release(Device& device, uintptr_t address, size_t bytes) {
  const auto large = large_.find(address);
  if (large != large_.end()) {
    device.give(address, large->second);
    large_.erase(large);
    return true;
  }
  bytes = round_up(bytes, kAlignment);
  const uintptr_t base = address / kChunkBytes * kChunkBytes;
  Chunk& chunk = chunks_.at(base);
  chunk.live -= bytes;
  if (chunk.live == 0) {
    device.give(base, kChunkBytes);
    chunks_.erase(base);
    with_holes_.erase(base);
    return true;
  }
  auto hole = chunk.holes.emplace(address, bytes).first;
  const auto next = std::next(hole);
  if (next != chunk.holes.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    chunk.holes.erase(next);
  }
  if (hole != chunk.holes.begin()) {
    const auto previous = std::prev(hole);
    if (previous->first + previous->second == hole->first) {
      previous->second += hole->second;
      chunk.holes.erase(hole);
    }
  }
  with_holes_.insert(base);
  return false;
}

void LegacyHeap::release_all(Device& device) {
  for (const auto& large : large_) device.give(large.first, large.second);
  for (const auto& chunk : chunks_) device.give(chunk.first, kChunkBytes);
  large_.clear();
  chunks_.clear();
  with_holes_.clear();
}

}  // namespace cupool::sim
