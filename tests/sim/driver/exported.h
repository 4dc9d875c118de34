// SPDX-License-Identifier: Apache-2.0
// Memory of another process (IPC): a device's memory is a shared file, so a handle is the name of
// that file in the exporter's /proc, and an import is a mapping of it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "driver/addresses.h"

namespace cupool::sim {

struct Device;

/// What a handle says. It fits into the 64 bytes of CUipcMemHandle and CUmemPoolPtrExportData.
struct Exported {
  uint64_t magic = 0;
  int32_t process = 0;
  int32_t file = -1;
  int32_t device = 0;
  int32_t unused = 0;
  uint64_t offset = 0;  ///< of the block in the file
  uint64_t size = 0;
  uint64_t pool = 0;   ///< number of the exporter's pool, 0 for legacy memory
  uint64_t owner = 0;  ///< as the exporter's test said
};
static_assert(sizeof(Exported) <= CU_IPC_HANDLE_SIZE, "handles are 64 bytes");

/// What a pool's shareable handle refers to, written into a file of its own.
struct ExportedPool {
  uint64_t magic = 0;
  int32_t process = 0;
  int32_t device = 0;
  uint64_t pool = 0;
};

Exported exported(const Device& device, const Allocation& allocation);
bool is_exported(const Exported& handle);

/// Maps the memory; the same block opened again gives the same address and one reference more.
CUresult open_exported(const Exported& handle, Context* context, Pool* pool, CUdeviceptr* address);

/// Takes one reference away, and the mapping with the last.
CUresult close_exported(Allocation& allocation);

/// A file descriptor that stands for the pool; -1 on failure. And back.
int export_pool(const Pool& pool);
bool read_exported_pool(int file, ExportedPool* out);

}  // namespace cupool::sim
