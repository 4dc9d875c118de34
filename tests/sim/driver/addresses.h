// SPDX-License-Identifier: Apache-2.0
// Which allocation an address belongs to: what pointer queries, frees and copies ask.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>

#include "driver/op.h"

namespace cupool::sim {

class Pool;
struct ForeignUse;

enum class Origin {
  legacy,      ///< cuMemAlloc
  pool,        ///< cuMemAllocAsync and its like
  managed,     ///< cuMemAllocManaged
  host,        ///< cuMemHostAlloc
  registered,  ///< cuMemHostRegister
  imported,    ///< cuIpcOpenMemHandle or cuMemPoolImportPointer
  mapped,      ///< cuMemMap
};

struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;  ///< as requested
  size_t held = 0;  ///< imported: what is mapped
  Origin origin = Origin::legacy;
  Context* context = nullptr;  ///< null for pool memory (measured)
  int device = 0;
  Pool* pool = nullptr;
  unsigned host_flags = 0;
  unsigned long long id = 0;
  bool sync_memops = false;
  uintptr_t mapped_at = 0;    ///< imported: where the mapping starts
  unsigned references = 0;    ///< imported: how often it was opened
  ForeignUse* use = nullptr;  ///< imported: its entry in the exporter's table

  bool on_host() const { return origin == Origin::host || origin == Origin::registered; }
};

class AddressMap {
 public:
  Allocation& add(Allocation allocation);
  Allocation* find(uintptr_t address);
  /// The allocation that starts at exactly this address.
  Allocation* starting_at(uintptr_t address);
  void erase(uintptr_t base) { map_.erase(base); }
  /// Takes away what goes with a context; its pool memory stays.
  void forget_context(Context& context);
  bool any_managed() const { return managed_ever_; }

 private:
  std::map<uintptr_t, Allocation> map_;
  unsigned long long last_id_ = 0;
  bool managed_ever_ = false;
};

/// Host memory that the device may use directly, page-aligned; and back.
void* allocate_host(size_t bytes);
void release_host(uintptr_t base, size_t bytes);

/// Whether work of this context may touch the memory: CUDA_SUCCESS or an illegal address, which
/// is a sticky error. Memory of another device needs peer access, or access granted by its pool.
CUresult may_access(Context& context, uintptr_t address, size_t bytes);

/// Whether a copy between devices reaches this memory: peer copies into pool memory without
/// access report success and write nothing (measured with two GPUs).
bool copy_reaches(int device, uintptr_t address);

}  // namespace cupool::sim
