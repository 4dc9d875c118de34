// Arenas: real memory stands for device memory, so that tests can look at it from the host.
#include "driver/device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace cupool::sim {

namespace {

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

bool overlaps(const std::map<uintptr_t, size_t>& ranges, uintptr_t address, size_t bytes) {
  auto range = ranges.upper_bound(address);
  if (range != ranges.end() && range->first < address + bytes) return true;
  if (range == ranges.begin()) return false;
  --range;
  return range->first + range->second > address;
}

}  // namespace

Arena::Arena(size_t address_bytes) : bytes_(address_bytes) {
  file_ = memfd_create("cupool-sim-device", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes_)) != 0) die("cupool sim: memfd");
  // One chunk more than needed, so that the base can be a multiple of the chunk size.
  void* const raw = mmap(nullptr, bytes_ + kChunkBytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) die("cupool sim: address space");
  base_ = (reinterpret_cast<uintptr_t>(raw) + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  free_.emplace(base_, bytes_);
}

uintptr_t Arena::map(size_t bytes) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < bytes) continue;
    const uintptr_t address = range->first;
    void* const at = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_,
                          static_cast<off_t>(address - base_));
    if (at == MAP_FAILED) return 0;
    const size_t rest = range->second - bytes;
    free_.erase(range);
    if (rest != 0) free_.emplace(address + bytes, rest);
    return address;
  }
  return 0;
}

bool Arena::map_foreign(uintptr_t address, size_t bytes, int file, size_t offset) {
  void* const at = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, static_cast<off_t>(offset));
  return at != MAP_FAILED;
}

void Arena::unmap(uintptr_t address, size_t bytes) {
  if (mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    die("cupool sim: unmap");
  }
  // The pages go back to the system and read zero when these addresses are mapped again.
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(address - base_), static_cast<off_t>(bytes));
  auto range = free_.emplace(address, bytes).first;
  const auto next = std::next(range);
  if (next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      free_.erase(range);
    }
  }
}

void Arena::close(uintptr_t address, size_t bytes) {
  if (mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    die("cupool sim: close");
  }
  closed_[address] = bytes;
  // One range again, so that it can be mapped in other parts or freed as a whole.
  auto range = closed_.find(address);
  const auto next = std::next(range);
  if (next != closed_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    closed_.erase(next);
  }
  if (range != closed_.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      closed_.erase(range);
    }
  }
}

bool Arena::closed(uintptr_t address, size_t bytes) const {
  auto range = closed_.upper_bound(address);
  if (range == closed_.begin()) return false;
  --range;
  return address + bytes <= range->first + range->second;
}

void Arena::open(uintptr_t address, size_t bytes) {
  auto range = std::prev(closed_.upper_bound(address));
  const uintptr_t first = range->first;
  const uintptr_t end = first + range->second;
  closed_.erase(range);
  if (first < address) closed_[first] = address - first;
  if (address + bytes < end) closed_[address + bytes] = end - address - bytes;
}

bool Arena::mapped(uintptr_t address, size_t bytes) const {
  if (address < base_ || address - base_ > bytes_ || bytes > bytes_ - (address - base_)) {
    return false;
  }
  return !overlaps(free_, address, bytes) && !overlaps(closed_, address, bytes);
}

// Four times the memory in addresses: physical chunks can be mapped anywhere on a real device, so
// fragmented addresses must not be what runs out first.
Device::Device(int number, size_t memory)
    : ordinal(number),
      total(memory / kChunkBytes * kChunkBytes),
      arena(total * 4 + (size_t{1} << 30)) {}

uintptr_t Device::take(size_t bytes) {
  if (bytes > total - used) return 0;
  const uintptr_t address = arena.map(bytes);
  if (address != 0) used += bytes;
  return address;
}

void Device::give(uintptr_t address, size_t bytes) {
  arena.unmap(address, bytes);
  used -= bytes;
}

}  // namespace cupool::sim
