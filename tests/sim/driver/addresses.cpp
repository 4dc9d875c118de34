// SPDX-License-Identifier: Apache-2.0
// The address map, and the two rules of access: by kernels (fault) and by copies (silence).
#include "driver/addresses.h"

#include <sys/mman.h>

#include "driver/context.h"
#include "driver/device.h"
#include "driver/exported.h"
#include "driver/pool.h"
#include "driver/world.h"

namespace cupool::sim {

Allocation& AddressMap::add(Allocation allocation) {
  allocation.id = ++last_id_;
  managed_ever_ = managed_ever_ || allocation.origin == Origin::managed;
  return map_[allocation.base] = allocation;
}

Allocation* AddressMap::find(uintptr_t address) {
  auto it = map_.upper_bound(address);
  if (it == map_.begin()) return nullptr;
  --it;
  return address - it->first < it->second.size ? &it->second : nullptr;
}

Allocation* AddressMap::starting_at(uintptr_t address) {
  const auto it = map_.find(address);
  return it == map_.end() ? nullptr : &it->second;
}

void AddressMap::forget_context(Context& context) {
  for (auto it = map_.begin(); it != map_.end();) {
    const Allocation& a = it->second;
    if (a.context != &context || a.origin == Origin::pool) {
      ++it;
      continue;
    }
    if (a.origin == Origin::host) release_host(a.base, a.held);
    if (a.origin == Origin::imported) {
      it->second.references = 1;
      Allocation gone = (it++)->second;
      close_exported(gone);
      continue;
    }
    it = map_.erase(it);
  }
}

void* allocate_host(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void release_host(uintptr_t base, size_t bytes) {
  munmap(reinterpret_cast<void*>(base), bytes);
}

CUresult may_access(Context& context, uintptr_t address, size_t bytes) {
  World& w = world();
  if (bytes == 0) return CUDA_SUCCESS;
  const Device* owner = w.device_at(address);
  if (owner == nullptr) {
    const Allocation* host = w.addresses.find(address);
    const bool reachable = host != nullptr && address + bytes <= host->base + host->size;
    return reachable ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (!owner->arena.backed(address, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const Allocation* a = w.addresses.find(address);
  const bool imported = a != nullptr && a->pool != nullptr && a->pool->imported();
  if (owner == context.device && !imported) return CUDA_SUCCESS;
  // What was freed in stream order is mapped until its turn, for the work before it.
  if (a != nullptr && a->origin == Origin::managed) return CUDA_SUCCESS;
  if (a != nullptr && a->pool != nullptr) {
    return a->pool->reachable_from(context.device->ordinal) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  for (const Context* peer : context.peers) {
    if (peer->device == owner) return CUDA_SUCCESS;
  }
  return CUDA_ERROR_ILLEGAL_ADDRESS;
}

bool copy_reaches(int device, uintptr_t address) {
  const Allocation* a = world().addresses.find(address);
  if (a == nullptr || a->pool == nullptr) return true;
  return a->pool->reachable_from(device);
}

}  // namespace cupool::sim
