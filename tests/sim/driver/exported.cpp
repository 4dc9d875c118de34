// SPDX-License-Identifier: Apache-2.0
// Export and import of memory between processes.
#include "driver/exported.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "driver/device.h"
#include "driver/foreign.h"
#include "driver/memory_file.h"
#include "driver/pool.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

constexpr uint64_t kMagic = 0x6375706f6f6c3031;

}  // namespace

Exported exported(const Device& device, const Allocation& allocation) {
  Exported handle;
  handle.magic = kMagic;
  handle.process = getpid();
  handle.file = device.arena.file();
  handle.device = device.ordinal;
  handle.offset = allocation.base - device.arena.base();
  handle.size = allocation.size;
  handle.owner = world().judge.exported(allocation.base);
  handle.pool = allocation.pool != nullptr ? allocation.pool->id : 0;
  return handle;
}

bool is_exported(const Exported& handle) {
  return handle.magic == kMagic;
}

CUresult open_exported(const Exported& handle, Context* context, Pool* pool, CUdeviceptr* address) {
  World& w = world();
  const ImportKey key{handle.process, handle.device, handle.offset};
  const auto known = w.imports.find(key);
  if (known != w.imports.end()) {
    ++w.addresses.starting_at(known->second)->references;
    *address = known->second;
    return CUDA_SUCCESS;
  }
  Device& device = pool != nullptr ? pool->device() : *context->device;
  const size_t first = handle.offset / kChunkBytes * kChunkBytes;
  const size_t end = (handle.offset + handle.size + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return CUDA_ERROR_INVALID_VALUE;
  const uintptr_t at = device.arena.reserve(end - first);  // the memory is theirs
  const bool mapped = at != 0 && device.arena.back_by(at, end - first, file, first);
  ForeignUse* const table = mapped ? map_foreign_uses(file) : nullptr;
  close(file);
  if (table == nullptr) return CUDA_ERROR_MAP_FAILED;
  Allocation allocation;
  allocation.base = at + (handle.offset - first);
  allocation.size = handle.size;
  allocation.held = end - first;
  allocation.mapped_at = at;
  allocation.references = 1;
  allocation.use = claim_foreign_use(table, handle.offset, handle.size, handle.owner);
  allocation.origin = Origin::imported;
  allocation.context = pool != nullptr ? nullptr : context;
  allocation.device = device.ordinal;
  allocation.pool = pool;
  w.addresses.add(allocation);
  w.imports.emplace(key, allocation.base);
  *address = allocation.base;
  return CUDA_SUCCESS;
}

CUresult close_exported(Allocation& allocation) {
  World& w = world();
  if (--allocation.references > 0) return CUDA_SUCCESS;
  const uintptr_t base = allocation.base;
  release_foreign_use(allocation.use);
  Arena& arena = w.devices[static_cast<size_t>(allocation.device)]->arena;
  arena.unback(allocation.mapped_at, allocation.held);
  arena.unreserve(allocation.mapped_at, allocation.held);
  for (auto it = w.imports.begin(); it != w.imports.end(); ++it) {
    if (it->second != base) continue;
    w.imports.erase(it);
    break;
  }
  w.addresses.erase(base);
  return CUDA_SUCCESS;
}

int export_pool(const Pool& pool) {
  const int file = memory_file("cupool-sim-pool");
  ExportedPool what;
  what.magic = kMagic;
  what.process = getpid();
  what.device = pool.device().ordinal;
  what.pool = pool.id;
  if (file >= 0 && write(file, &what, sizeof what) != static_cast<ssize_t>(sizeof what)) {
    close(file);
    return -1;
  }
  return file;
}

bool read_exported_pool(int file, ExportedPool* out) {
  return pread(file, out, sizeof *out, 0) == static_cast<ssize_t>(sizeof *out) &&
         out->magic == kMagic;
}

}  // namespace cupool::sim
