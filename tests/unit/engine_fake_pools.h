// SPDX-License-Identifier: Apache-2.0
// Memory pools for the fake driver, on any number of devices: what each pool has reserved and who
// may use it, counted and never touched. They grow by the steps that real ones grow by.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "config/settings.h"
#include "engine_fake_driver.h"

namespace cupool::test {

struct FakePools {
  static constexpr std::uint64_t kStep = std::uint64_t{32} << 20;

  struct Pool {
    int device = 0;
    unsigned usage = 0;
    std::uint64_t threshold = 0;
    std::uint64_t reserved = 0;
    std::uint64_t used = 0;
    std::uint64_t high = 0;       ///< of `used`, since its last reset
    std::uint64_t fragments = 0;  ///< idle bytes that no trim gives back
    std::set<int> admitted;
  };
  struct Block {
    CUmemoryPool pool = nullptr;
    std::uint64_t bytes = 0;
  };

  // What the driver answers; written by the test while it is the only thread.
  bool supported = true;
  bool decompresses = false;  ///< by hardware
  bool refuses_usage = false;
  bool mps = false;   ///< whether the device is shared by MPS
  bool peers = true;  ///< whether devices can be
  int devices = 1;
  CUresult count_result = CUDA_SUCCESS;
  CUresult free_result = CUDA_SUCCESS;
  CUresult trim_result = CUDA_SUCCESS;

  // What has happened, under the mutex.
  std::mutex mutex;
  std::map<CUmemoryPool, Pool> pools;
  std::map<int, CUmemoryPool> defaults;
  std::map<int, CUmemoryPool> currents;  ///< where it is not the default one
  std::map<CUdeviceptr, Block> blocks;
  std::uintptr_t next_handle = 1;
  std::atomic<unsigned> figures_read{0};  ///< how often the driver was asked for a figure
  std::atomic<unsigned> trims{0};

  std::vector<Pool> all() {
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<Pool> found;
    for (const auto& each : pools) found.push_back(each.second);
    return found;
  }
  /// The pool of the block at `address`, or null.
  CUmemoryPool pool_of(CUdeviceptr address) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = blocks.find(address);
    return found == blocks.end() ? nullptr : found->second.pool;
  }
  std::uint64_t reserved() {
    std::uint64_t sum = 0;
    for (const Pool& each : all()) sum += each.reserved;
    return sum;
  }
};
inline FakePools* pools = nullptr;  ///< of the last driver that was given some

namespace fake {

inline CUmemoryPool add_pool_locked(int device) {
  const DriversHeap own;
  const auto handle = reinterpret_cast<CUmemoryPool>(pools->next_handle++);
  pools->pools[handle].device = device;
  return handle;
}
inline CUresult attribute_of_device(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED && pools->supported ? 1 : 0;
  if (attribute == static_cast<CUdevice_attribute>(133)) *value = pools->mps ? 1 : 0;
#if CUDA_VERSION >= 12080
  if (attribute == CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK) {
    *value = pools->decompresses ? CU_MEM_DECOMPRESS_ALGORITHM_LZ4 : 0;
  }
#endif
  return CUDA_SUCCESS;
}
inline CUresult count_devices(int* count) {
  *count = pools->devices;
  return pools->count_result;
}
inline CUresult can_access_peer(int* can, CUdevice, CUdevice) {
  *can = pools->peers ? 1 : 0;
  return CUDA_SUCCESS;
}
inline CUresult default_pool(CUmemoryPool* pool, CUdevice device) {
  const std::lock_guard<std::mutex> lock(pools->mutex);
  CUmemoryPool& handle = pools->defaults[device];
  if (handle == nullptr) handle = add_pool_locked(device);
  *pool = handle;
  return CUDA_SUCCESS;
}
inline CUresult current_pool(CUmemoryPool* pool, CUdevice device) {
  const CUresult result = default_pool(pool, device);
  const std::lock_guard<std::mutex> lock(pools->mutex);
  const auto set = pools->currents.find(device);
  if (set != pools->currents.end()) *pool = set->second;
  return result;
}
inline CUresult create_pool(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const std::lock_guard<std::mutex> lock(pools->mutex);
#if CUDA_VERSION >= 12080
  if (pools->refuses_usage && properties->usage != 0) return CUDA_ERROR_NOT_SUPPORTED;
#endif
  *pool = add_pool_locked(properties->location.id);
#if CUDA_VERSION >= 12080
  pools->pools.at(*pool).usage = properties->usage;
#endif
  return CUDA_SUCCESS;
}
inline CUresult set_pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const std::lock_guard<std::mutex> lock(pools->mutex);
  FakePools::Pool& set = pools->pools.at(pool);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    set.threshold = *static_cast<const cuuint64_t*>(value);
  }
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) set.high = set.used;
  return CUDA_SUCCESS;
}
inline CUresult pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  ++pools->figures_read;
  const std::lock_guard<std::mutex> lock(pools->mutex);
  const FakePools::Pool& asked = pools->pools.at(pool);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ||
      attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    *static_cast<cuuint64_t*>(value) =
        attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? asked.threshold : asked.high;
    return CUDA_SUCCESS;
  }
  const bool of_reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
                           attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
  *static_cast<cuuint64_t*>(value) = of_reserved ? asked.reserved : asked.used;
  return CUDA_SUCCESS;
}
inline CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count) {
  const std::lock_guard<std::mutex> lock(pools->mutex);
  for (std::size_t i = 0; i < count; ++i) {
    pools->pools.at(pool).admitted.insert(access[i].location.id);
  }
  return CUDA_SUCCESS;
}
inline CUresult trim_pool(CUmemoryPool pool, std::size_t keep_bytes) {
  ++pools->trims;
  const std::lock_guard<std::mutex> lock(pools->mutex);
  FakePools::Pool& trimmed = pools->pools.at(pool);
  if (pools->trim_result != CUDA_SUCCESS) return pools->trim_result;
  const std::uint64_t least = std::max<std::uint64_t>(trimmed.used + trimmed.fragments, keep_bytes);
  trimmed.reserved = std::min(trimmed.reserved, least);
  return CUDA_SUCCESS;
}
inline CUresult allocate_from_pool(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                   CUstream) {
  constexpr std::uint64_t kUnit = std::uint64_t{2} << 20;
  const DriversHeap own;
  const std::lock_guard<std::mutex> lock(pools->mutex);
  FakePools::Pool& giving = pools->pools.at(pool);
  giving.used += bytes;
  giving.high = std::max(giving.high, giving.used);
  while (giving.reserved < giving.used) giving.reserved += FakePools::kStep;
  *address = gpu.next_address.fetch_add((bytes + kUnit - 1) / kUnit * kUnit);
  pools->blocks[*address] = {pool, bytes};
  return CUDA_SUCCESS;
}
inline CUresult free_to_pool(CUdeviceptr address, CUstream) {
  const std::lock_guard<std::mutex> lock(pools->mutex);
  if (pools->free_result != CUDA_SUCCESS) return pools->free_result;
  const auto freed = pools->blocks.find(address);
  if (freed == pools->blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  pools->pools.at(freed->second.pool).used -= freed->second.bytes;
  pools->blocks.erase(freed);
  return CUDA_SUCCESS;
}
inline CUresult memory_info_with_pools(std::size_t* free_bytes, std::size_t* total_bytes) {
  *total_bytes = gpu.capacity.load();
  *free_bytes = *total_bytes - pools->reserved();
  return CUDA_SUCCESS;
}
inline CUresult create_stream(CUstream* stream, unsigned int) {
  const std::lock_guard<std::mutex> lock(pools->mutex);
  *stream = reinterpret_cast<CUstream>(pools->next_handle++ << 16);
  return CUDA_SUCCESS;
}
inline CUresult stream_is_done(CUstream) {
  return CUDA_SUCCESS;
}

}  // namespace fake

/// The same with pools, which no one has used yet. They are never destroyed, as a driver's.
inline cuda::Driver fake_driver_with_pools() {
  static auto* const kept = new std::vector<FakePools*>;
  pools = new FakePools;
  kept->push_back(pools);
  cuda::Driver driver = fake_driver();
  driver.cuDeviceGetAttribute = fake::attribute_of_device;
  driver.cuDeviceGetCount = fake::count_devices;
  driver.cuDeviceCanAccessPeer = fake::can_access_peer;
  driver.cuDeviceGetDefaultMemPool = fake::default_pool;
  driver.cuDeviceGetMemPool = fake::current_pool;
  driver.cuMemPoolCreate = fake::create_pool;
  driver.cuMemPoolSetAttribute = fake::set_pool_attribute;
  driver.cuMemPoolGetAttribute = fake::pool_attribute;
  driver.cuMemPoolSetAccess = fake::set_access;
  driver.cuMemPoolTrimTo = fake::trim_pool;
  driver.cuMemAllocFromPoolAsync = fake::allocate_from_pool;
  driver.cuMemFreeAsync = fake::free_to_pool;
  driver.cuMemGetInfo_v2 = fake::memory_info_with_pools;
  driver.cuStreamCreate = fake::create_stream;
  driver.cuStreamQuery = fake::stream_is_done;
  driver.cuStreamSynchronize = fake::stream_is_done;
  return driver;
}

/// The settings of a process with these lines of KEY=VALUE in its environment.
inline config::Settings settings_of(std::initializer_list<const char*> lines) {
  std::vector<const char*> environment(lines);
  environment.push_back(nullptr);
  return config::parse(environment.data(), nullptr, nullptr);
}

}  // namespace cupool::test
