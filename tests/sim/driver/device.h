// SPDX-License-Identifier: Apache-2.0
// A device: its memory (physical amount and virtual addresses) and what belongs to the device and
// not to a context, such as pools.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "driver/shared_use.h"

namespace cupool::sim {

struct Context;
struct ForeignUse;
class Pool;

constexpr size_t kChunkBytes = size_t{2} << 20;
constexpr size_t kAlignment = 512;  ///< of every address

constexpr size_t round_up(size_t bytes, size_t step) {
  return (bytes + step - 1) / step * step;
}

/// Addresses backed by one shared anonymous file: unmapped memory faults, mapped memory starts as
/// zero, and another process can map the same bytes (IPC) through this process's descriptor.
class Arena {
 public:
  explicit Arena(size_t address_bytes);

  /// Lowest free addresses first; 0 when there is no room. Multiples of kChunkBytes only.
  uintptr_t reserve(size_t bytes);
  void unreserve(uintptr_t address, size_t bytes);

  /// Gives reserved addresses memory that reads zero, and takes it away again.
  bool back(uintptr_t address, size_t bytes);
  void unback(uintptr_t address, size_t bytes);
  /// Backs reserved addresses by other memory (another process's arena, explicit handles).
  bool back_by(uintptr_t address, size_t bytes, int file, size_t offset);

  bool contains(uintptr_t address) const { return address >= base_ && address < base_ + bytes_; }
  /// Whether all of these addresses are reserved and have memory.
  bool backed(uintptr_t address, size_t bytes) const;
  /// Whether all of these addresses are reserved and have none.
  bool bare(uintptr_t address, size_t bytes) const;
  uintptr_t base() const { return base_; }
  int file() const { return file_; }
  ForeignUse* foreign_uses() const { return foreign_uses_; }

 private:
  uintptr_t base_ = 0;
  size_t bytes_ = 0;
  int file_ = -1;
  ForeignUse* foreign_uses_ = nullptr;
  std::map<uintptr_t, size_t> free_;
  std::map<uintptr_t, size_t> bare_;
};

struct Device {
  /// `shared_file`: see CUPOOL_SIM_SHARED; empty for memory of this process alone.
  Device(int number, size_t memory, const std::string& shared_file);

  int ordinal;
  size_t total;
  size_t used = 0;  ///< by this process
  std::unique_ptr<SharedUse> shared;
  Arena arena;

  Context* primary = nullptr;  ///< the handle stays the same for ever
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  Pool* default_pool = nullptr;
  Pool* current_pool = nullptr;
  Pool* graph_pool = nullptr;

  /// Memory of whole chunks at new addresses, 0 when the device has not enough left.
  uintptr_t take(size_t bytes);
  void give(uintptr_t address, size_t bytes);

  /// The same at addresses that are reserved already, and stay so.
  bool take_at(uintptr_t address, size_t bytes);
  void give_at(uintptr_t address, size_t bytes);

  /// Bytes that no process uses.
  size_t available() const;
  /// Whether so much is left; if not, idle pool memory may be taken back first.
  bool has(size_t bytes);
  /// Counts bytes as used. False: another process was faster.
  bool count(size_t bytes);
  void uncount(size_t bytes);
};

}  // namespace cupool::sim
