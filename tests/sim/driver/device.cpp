// SPDX-License-Identifier: Apache-2.0
// Arenas: real memory stands for device memory, so that tests can look at it from the host.
#include "driver/device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "driver/foreign.h"
#include "driver/memory_file.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

/// Sets of address ranges in which neighbours are one.
using Ranges = std::map<uintptr_t, size_t>;

void insert(Ranges& ranges, uintptr_t address, size_t bytes) {
  auto range = ranges.emplace(address, bytes).first;
  const auto next = std::next(range);
  if (next != ranges.end() && range->first + range->second == next->first) {
    range->second += next->second;
    ranges.erase(next);
  }
  if (range == ranges.begin()) return;
  const auto previous = std::prev(range);
  if (previous->first + previous->second != range->first) return;
  previous->second += range->second;
  ranges.erase(range);
}

bool covered(const Ranges& ranges, uintptr_t address, size_t bytes) {
  auto range = ranges.upper_bound(address);
  if (range == ranges.begin()) return false;
  --range;
  return address + bytes <= range->first + range->second;
}

void remove(Ranges& ranges, uintptr_t address, size_t bytes) {
  const auto range = std::prev(ranges.upper_bound(address));
  const uintptr_t first = range->first;
  const uintptr_t end = first + range->second;
  ranges.erase(range);
  if (first < address) ranges[first] = address - first;
  if (address + bytes < end) ranges[address + bytes] = end - address - bytes;
}

bool overlaps(const Ranges& ranges, uintptr_t address, size_t bytes) {
  auto range = ranges.upper_bound(address);
  if (range != ranges.end() && range->first < address + bytes) return true;
  if (range == ranges.begin()) return false;
  --range;
  return range->first + range->second > address;
}

bool make_bare(uintptr_t address, size_t bytes) {
  return mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

}  // namespace

Arena::Arena(size_t address_bytes) : bytes_(address_bytes) {
  file_ = memory_file("cupool-sim-device");
  const auto file_bytes = static_cast<off_t>(bytes_ + kForeignBytes);
  if (file_ < 0 || ftruncate(file_, file_bytes) != 0) die("cupool sim: memfd");
  foreign_uses_ = map_foreign_uses(file_);
  if (foreign_uses_ == nullptr) die("cupool sim: table of imports");
  // One chunk more than needed, so that the base can be a multiple of the chunk size.
  void* const raw = mmap(nullptr, bytes_ + kChunkBytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) die("cupool sim: address space");
  base_ = (reinterpret_cast<uintptr_t>(raw) + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  free_.emplace(base_, bytes_);
}

uintptr_t Arena::reserve(size_t bytes) {
  for (const auto& range : free_) {
    if (range.second < bytes) continue;
    const uintptr_t address = range.first;
    remove(free_, address, bytes);
    insert(bare_, address, bytes);
    return address;
  }
  return 0;
}

void Arena::unreserve(uintptr_t address, size_t bytes) {
  remove(bare_, address, bytes);
  insert(free_, address, bytes);
}

bool Arena::back(uintptr_t address, size_t bytes) {
  return back_by(address, bytes, file_, address - base_);
}

bool Arena::back_by(uintptr_t address, size_t bytes, int file, size_t offset) {
  void* const at = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return false;
  remove(bare_, address, bytes);
  return true;
}

void Arena::unback(uintptr_t address, size_t bytes) {
  if (!make_bare(address, bytes)) die("cupool sim: unmap");
  // The pages go back to the system and read zero when these addresses are backed again.
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(address - base_),
            static_cast<off_t>(bytes));
  insert(bare_, address, bytes);
}

bool Arena::backed(uintptr_t address, size_t bytes) const {
  if (address < base_ || address - base_ > bytes_ || bytes > bytes_ - (address - base_)) {
    return false;
  }
  return !overlaps(free_, address, bytes) && !overlaps(bare_, address, bytes);
}

bool Arena::bare(uintptr_t address, size_t bytes) const {
  return covered(bare_, address, bytes);
}

// Many times the memory in addresses: every pool reserves as much as the device has, to grow in
// one piece, and fragmented addresses must not be what runs out first.
Device::Device(int number, size_t memory, const std::string& shared_file)
    : ordinal(number),
      total(memory / kChunkBytes * kChunkBytes),
      arena(total * 32 + (size_t{8} << 30)) {
  if (!shared_file.empty()) shared = std::make_unique<SharedUse>(shared_file, number);
}

size_t Device::available() const {
  const size_t all = used + (shared == nullptr ? 0 : shared->of_others());
  return total - std::min(total, all);
}

bool Device::has(size_t bytes) {
  if (bytes <= available()) return true;
  if (bytes <= total && world().settings.reclaim) world().reclaim(*this);
  return bytes <= available();
}

bool Device::count(size_t bytes) {
  if (shared != nullptr && !shared->take(used + bytes, total)) return false;
  used += bytes;
  return true;
}

void Device::uncount(size_t bytes) {
  used -= bytes;
  if (shared != nullptr) shared->give(used);
}

uintptr_t Device::take(size_t bytes) {
  if (!has(bytes)) return 0;
  const uintptr_t address = arena.reserve(bytes);
  if (address == 0) return 0;
  if (take_at(address, bytes)) return address;
  arena.unreserve(address, bytes);
  return 0;
}

void Device::give(uintptr_t address, size_t bytes) {
  give_at(address, bytes);
  arena.unreserve(address, bytes);
}

bool Device::take_at(uintptr_t address, size_t bytes) {
  if (!has(bytes) || !count(bytes)) return false;
  if (arena.back(address, bytes)) return true;
  uncount(bytes);
  return false;
}

void Device::give_at(uintptr_t address, size_t bytes) {
  arena.unback(address, bytes);
  uncount(bytes);
}

}  // namespace cupool::sim
