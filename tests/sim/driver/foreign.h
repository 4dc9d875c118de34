// SPDX-License-Identifier: Apache-2.0
// Who uses a device's memory from another process: a table in memory that both processes share, so
// that the exporter's judge sees an importer's pending work, and the importer's judge learns that
// the memory has another owner by now.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "driver/op.h"

namespace cupool::sim {

/// One import of one block. The first five are written by both processes.
struct ForeignUse {
  std::atomic<int32_t> process;   ///< of the importer; 0: this entry is free
  std::atomic<uint32_t> reads;    ///< pending operations that read
  std::atomic<uint32_t> writes;   ///< pending operations that write
  std::atomic<uint32_t> revoked;  ///< the block's owner has changed since it was exported
  std::atomic<uint32_t> ready;    ///< the rest has been written
  uint64_t offset;                ///< of the block in the exporter's arena
  uint64_t bytes;
  uint64_t owner;  ///< when the block was exported, as the exporter's test said; 0: nobody said
};

constexpr size_t kForeignUses = 256;
constexpr size_t kForeignBytes = 16384;
static_assert(kForeignUses * sizeof(ForeignUse) <= kForeignBytes, "the table has its own pages");
static_assert(std::atomic<int32_t>::is_always_lock_free, "shared between processes");

/// The table that lies at the end of a device's file; null when it cannot be mapped. It stays
/// mapped for good: operations that outlive their import still count there.
ForeignUse* map_foreign_uses(int file);

/// An entry for an import of this process; null when the table is full.
ForeignUse* claim_foreign_use(ForeignUse* table, uint64_t offset, uint64_t bytes, uint64_t owner);
void release_foreign_use(ForeignUse* use);

/// Tells the exporters that an operation on imported memory is pending, and that it has executed.
void begin_foreign_uses(Op& op);
void end_foreign_uses(Op& op);

/// Visits the imports, by living processes, of this process's memory.
template <typename Visit>
void each_foreign_use(ForeignUse* table, uint64_t offset, uint64_t bytes, Visit visit) {
  for (size_t i = 0; i < kForeignUses; ++i) {
    ForeignUse& use = table[i];
    if (use.process == 0 || use.ready == 0) continue;
    if (use.offset < offset + bytes && offset < use.offset + use.bytes) visit(use);
  }
}

/// Whether the importer still runs; one that has ended leaves its entries as they were.
bool lives(const ForeignUse& use);

}  // namespace cupool::sim
