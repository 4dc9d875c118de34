// A device: its memory (physical amount and virtual addresses) and what belongs to the device and
// not to a context, such as pools.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace cupool::sim {

struct Context;
class Pool;

constexpr size_t kChunkBytes = size_t{2} << 20;

/// Addresses backed by one shared anonymous file: unmapped memory faults, mapped memory starts as
/// zero, and another process can map the same bytes (IPC) through this process's descriptor.
class Arena {
 public:
  explicit Arena(size_t address_bytes);

  /// Lowest free addresses first; 0 when there is no room. Multiples of kChunkBytes only.
  uintptr_t map(size_t bytes);
  void unmap(uintptr_t address, size_t bytes);

  bool contains(uintptr_t address) const { return address >= base_ && address < base_ + bytes_; }
  bool mapped(uintptr_t address, size_t bytes) const;

  /// Takes access to mapped addresses away while they stay reserved (explicit virtual memory).
  void close(uintptr_t address, size_t bytes);
  /// Whether a closed range covers these addresses.
  bool closed(uintptr_t address, size_t bytes) const;
  /// The range is about to be backed by other memory.
  void open(uintptr_t address, size_t bytes);
  /// Forgets that the range starting here is closed.
  void reopen(uintptr_t address) { closed_.erase(address); }

  uintptr_t base() const { return base_; }
  int file() const { return file_; }

  /// Maps bytes of another process's arena here instead (IPC), and back.
  bool map_foreign(uintptr_t address, size_t bytes, int file, size_t offset);

 private:
  uintptr_t base_ = 0;
  size_t bytes_ = 0;
  int file_ = -1;
  std::map<uintptr_t, size_t> free_;
  std::map<uintptr_t, size_t> closed_;
};

struct Device {
  Device(int number, size_t memory);

  int ordinal;
  size_t total;
  size_t used = 0;
  Arena arena;

  Context* primary = nullptr;  ///< the handle stays the same for ever
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  Pool* default_pool = nullptr;
  Pool* current_pool = nullptr;
  Pool* graph_pool = nullptr;

  /// Mapped memory of whole chunks, 0 when the device has not enough left.
  uintptr_t take(size_t bytes);
  void give(uintptr_t address, size_t bytes);
};

}  // namespace cupool::sim
