// SPDX-License-Identifier: Apache-2.0
// Creates the pools on first use, and configures them by the options.
#include "engine/backend/pool_pair.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/backend/pool_attributes.h"
#include "engine/reclaim/device_use.h"
#include "stats/pool_growth.h"
#include "util/log.h"

namespace cupool::engine {

template <typename Visit>
void PoolPair::visit_each(const Visit& visit) const {
  CUmemoryPool previous = nullptr;
  for (const PoolKind kind : kEachPoolKind) {
    const CUmemoryPool pool = created(kind);
    if (pool == nullptr || pool == previous) continue;
    previous = pool;  // with CUPOOL_POOL=default both are one pool
    if (!visit(pool)) return;
  }
}

void PoolPair::trim(std::uint64_t keep_large) const {
  for (const PoolKind kind : kEachPoolKind) {
    const CUmemoryPool pool = created(kind);
    if (pool == nullptr) continue;
    driver_.cuMemPoolTrimTo(pool, kind == PoolKind::large ? keep_large : 0);
  }
  see_reserved();
}

stats::PoolFigures PoolPair::figures() const {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  stats::PoolFigures sum;
  visit_each([&](CUmemoryPool pool) {
    const auto add = [&](CUmemPool_attribute attribute, std::uint64_t* figure) {
      return add_attribute(driver_, pool, attribute, figure);
    };
    sum.valid = add(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &sum.reserved_current) &&
                add(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &sum.reserved_high) &&
                add(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &sum.used_current) &&
                add(CU_MEMPOOL_ATTR_USED_MEM_HIGH, &sum.used_high);
    return sum.valid;
  });
  return sum;
}

std::uint64_t PoolPair::reserved() const {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  std::uint64_t sum = 0;
  visit_each([&](CUmemoryPool pool) {
    sum += reserved_bytes(driver_, pool);
    return true;
  });
  return sum;
}

void PoolPair::see_reserved() const {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  for (const PoolKind kind : kEachPoolKind) {
    const CUmemoryPool pool = created(kind);
    reserved_seen_[index_of(kind)].store(pool == nullptr ? 0 : reserved_bytes(driver_, pool),
                                         std::memory_order_relaxed);
  }
}

std::uint64_t PoolPair::reserved_seen() const {
  std::uint64_t sum = 0;
  visit_each([&](CUmemoryPool pool) {
    sum += reserved_seen(pool == created(PoolKind::large) ? PoolKind::large : PoolKind::small);
    return true;
  });
  return sum;
}

std::uint64_t PoolPair::slack() const {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  std::uint64_t sum = 0;
  visit_each([&](CUmemoryPool pool) {
    std::uint64_t reserved = 0;
    std::uint64_t used = 0;
    const bool known =
        add_attribute(driver_, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) &&
        add_attribute(driver_, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    sum = known ? sum + reserved - std::min(reserved, used) : 0;
    return known;
  });
  return sum;
}

// Not reported as free: a program may allocate all memory reported as free, and must still be able
// to load its code after that (contracts 4 and 5).
std::uint64_t PoolPair::pinned_bytes() const {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  std::uint64_t sum = 0;
  visit_each([&](CUmemoryPool pool) {
    if (used_bytes(driver_, pool) != 0) sum += stats::kPoolGrowthStep;
    return true;
  });
  return sum;
}

CUresult PoolPair::get(PoolKind kind, CUstream stream, CUmemoryPool* pool) {
  *pool = created(kind);
  if (*pool != nullptr) return CUDA_SUCCESS;
  const std::lock_guard lock(create_mutex_);
  *pool = created(kind);
  if (*pool != nullptr) return CUDA_SUCCESS;
  const CUresult result = create(kind, stream, pool);
  if (result != CUDA_SUCCESS) return result;
  pools_[index_of(kind)].store(*pool, std::memory_order_release);
  return is_refused_to_peer() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult PoolPair::create(PoolKind kind, CUstream stream, CUmemoryPool* pool) {
  if (device_.limits.use_default_pool) {
    const CUresult result = driver_.cuDeviceGetDefaultMemPool(pool, device_.ordinal);
    if (result == CUDA_SUCCESS) configure(kind, *pool);
    return result;
  }
  // Tried twice: without handles, this pool's memory could never be shared.
  constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (sharing_.wants_handles() &&
      (create_with(kFile, pool) == CUDA_SUCCESS || create_with(kFile, pool) == CUDA_SUCCESS)) {
    configure(kind, *pool);
    const CUresult accepted = sharing_.accepts(kind, *pool, stream);
    if (accepted == CUDA_SUCCESS) return accepted;
    driver_.cuMemPoolDestroy(*pool);
    // Without memory nothing is known. What would be decided is for good.
    if (accepted == CUDA_ERROR_OUT_OF_MEMORY) return accepted;
  }
  const CUresult result = create_with(CU_MEM_HANDLE_TYPE_NONE, pool);
  if (result == CUDA_SUCCESS) configure(kind, *pool);
  return result;
}

CUresult PoolPair::create_with(CUmemAllocationHandleType handle, CUmemoryPool* pool) const {
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = handle;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_.ordinal;
#if CUDA_VERSION >= 12020
  // The driver's limit for each pool; PoolBackend limits their sum.
  if (driver_.version >= 12020) properties.maxSize = device_.limits.max_size;
#endif
#if CUDA_VERSION >= 12080
  if (decompresses()) {
    properties.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
    if (driver_.cuMemPoolCreate(pool, &properties) == CUDA_SUCCESS) return CUDA_SUCCESS;
    properties.usage = 0;
  }
#endif
  return driver_.cuMemPoolCreate(pool, &properties);
}

// Memory of cudaMalloc may be decompressed by hardware where there is such (contract 6).
bool PoolPair::decompresses() const {
  constexpr auto kAlgorithms = static_cast<CUdevice_attribute>(136);  // CUDA 12.8
  int algorithms = 0;
  return driver_.version >= 12080 &&
         driver_.cuDeviceGetAttribute(&algorithms, kAlgorithms, device_.ordinal) == CUDA_SUCCESS &&
         algorithms != 0;
}

void PoolPair::configure(PoolKind kind, CUmemoryPool pool) {
  const DeviceLimits& limits = device_.limits;
  cuuint64_t threshold = limits.release_threshold;
  set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold, "CUPOOL_RELEASE_THRESHOLD");
  int follow = limits.reuse_follow_event_dependencies ? 1 : 0;
  set_attribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow,
                "CUPOOL_REUSE_FOLLOW_EVENT_DEPENDENCIES");
  int opportunistic = limits.reuse_allow_opportunistic ? 1 : 0;
  set_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &opportunistic,
                "CUPOOL_REUSE_ALLOW_OPPORTUNISTIC");
  int internal = limits.reuse_allow_internal_dependencies ? 1 : 0;
  set_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &internal,
                "CUPOOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES");
  admitted_[index_of(kind)].reset();
  for (const int peer : device_.peers) {
    if (device_in_use(peer)) grant(kind, pool, peer);
  }
}

void PoolPair::set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value,
                             const char* option) const {
  const CUresult result = driver_.cuMemPoolSetAttribute(pool, attribute, value);
  if (result != CUDA_SUCCESS && !cuda::has_shut_down(driver_)) {
    CUPOOL_WARN_ONCE("the driver refused %s (error %d): the option has no effect", option,
                     static_cast<int>(result));
  }
}

void PoolPair::admit(int peer) {
  const std::vector<int>& peers = device_.peers;
  if (std::find(peers.begin(), peers.end(), peer) == peers.end()) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::lock_guard lock(create_mutex_);
  CUmemoryPool previous = nullptr;
  for (const PoolKind kind : kEachPoolKind) {
    const CUmemoryPool pool = created(kind);
    if (pool != nullptr && pool != previous) grant(kind, pool, peer);
    previous = pool;
  }
}

// Memory of cudaMalloc can be copied between devices without peer access; pool memory cannot. A
// copy to a device without access to the pool reports success and writes nothing (measured). So no
// new memory comes from pools after a device was refused. A pool created while the device came into
// use has already given it access.
void PoolPair::grant(PoolKind kind, CUmemoryPool pool, int peer) {
  if (admitted_[index_of(kind)].test(static_cast<std::size_t>(peer))) return;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = peer;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUresult result = driver_.cuMemPoolSetAccess(pool, &access, 1);
  if (result != CUDA_SUCCESS) result = driver_.cuMemPoolSetAccess(pool, &access, 1);
  if (result == CUDA_SUCCESS) {
    admitted_[index_of(kind)].set(static_cast<std::size_t>(peer));
    return;
  }
  peer_refused_.store(true, std::memory_order_relaxed);
  CUPOOL_LOG(info,
             "the driver refused device %d access to the pool of device %d (error %d): later "
             "blocks are plain memory",
             peer, device_.ordinal, static_cast<int>(result));
}

}  // namespace cupool::engine
