// Pools: created on first use, configured by the options, and used through a stream of the calling
// thread on which nothing else ever runs (I2).
#include "core/backend_pool.h"

#include <algorithm>

#include "core/context.h"
#include "core/device_use.h"
#include "core/size_class.h"
#include "cuda/scopes.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::core {
bool PoolBackend::supported(const cuda::Driver& driver, int device) {
  if (driver.cuMemPoolCreate == nullptr || driver.cuMemAllocFromPoolAsync == nullptr ||
      driver.cuMemFreeAsync == nullptr || driver.cuMemPoolTrimTo == nullptr ||
      driver.cuMemPoolSetAttribute == nullptr || driver.cuMemPoolGetAttribute == nullptr) {
    return false;
  }
  int yes = 0;
  return driver.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device) ==
             CUDA_SUCCESS &&
         yes != 0;
}

CUresult PoolBackend::allocate(Context& context, std::uint64_t capacity, CUdeviceptr* address) {
  return allocate(context, capacity, Growth::leaves_some, address);
}

CUresult PoolBackend::allocate_last(Context& context, std::uint64_t capacity,
                                    CUdeviceptr* address) {
  return allocate(context, capacity, Growth::to_the_limit, address);
}

CUresult PoolBackend::allocate(Context& context, std::uint64_t capacity, Growth growth,
                               CUdeviceptr* address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  if (peer_refused_.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_SUPPORTED;
  if (would_exceed_maximum(capacity)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUstream stream = nullptr;
  CUresult result = context.thread_stream(&stream);
  if (result != CUDA_SUCCESS) return result;
  CUmemoryPool pool = nullptr;
  result = pool_of(is_large(capacity) ? kLarge : kSmall, stream, &pool);
  if (result != CUDA_SUCCESS) return result;
  if (lacks_room(pool, capacity, growth)) return CUDA_ERROR_OUT_OF_MEMORY;
  result = driver_.cuMemAllocFromPoolAsync(address, capacity, pool, stream);
  if (result != CUDA_SUCCESS) return result;
  if (CUPOOL_MUTATED("fresh-unasked")) return CUDA_SUCCESS;
  // I2: usable at once on every stream only when the allocation itself has completed.
  result = driver_.cuStreamQuery(stream);
  if (result == CUDA_ERROR_NOT_READY) result = driver_.cuStreamSynchronize(stream);
  if (result != CUDA_SUCCESS) {
    driver_.cuMemFreeAsync(*address, stream);
    *address = 0;
    return result;
  }
  shed_slack(is_large(capacity) ? kLarge : kSmall, pool);
  return CUDA_SUCCESS;
}

// A pool that had to grow although it holds much idle memory holds it in pieces that do not fit.
// Whole idle chunks go back to the device then, so that a program whose sizes change does not end
// up with the sum of all its phases (the driver itself keeps up to the release threshold).
void PoolBackend::shed_slack(Kind kind, CUmemoryPool pool) {
  const std::uint64_t reserved = attribute_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  if (reserved <= last_reserved_[kind].exchange(reserved, std::memory_order_relaxed)) return;
  const Device::Limits& limits = device_.limits();
  // What the user asked to be kept is kept.
  if (limits.prealloc != 0 || limits.release_threshold < device_.total_bytes()) return;
  const std::uint64_t used = attribute_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  const std::uint64_t allowed = std::max(used + kGrowthStep, device_.footprint_budget());
  if (reserved > allowed) driver_.cuMemPoolTrimTo(pool, used + kGrowthStep);
}

std::uint64_t PoolBackend::attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute) const {
  cuuint64_t value = 0;
  read_attribute(pool, attribute, &value);
  return value;
}

// A refusal may pass; without the figures the program is told too little free memory (contract 5).
bool PoolBackend::read_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                 cuuint64_t* value) const {
  return driver_.cuMemPoolGetAttribute(pool, attribute, value) == CUDA_SUCCESS ||
         driver_.cuMemPoolGetAttribute(pool, attribute, value) == CUDA_SUCCESS;
}

bool PoolBackend::release(Context& context, CUdeviceptr address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUstream stream = nullptr;
  return scope.ok() && context.thread_stream(&stream) == CUDA_SUCCESS &&
         driver_.cuMemFreeAsync(address, stream) == CUDA_SUCCESS;
}

void PoolBackend::trim(Context& context) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  // A pool gives back only memory whose frees have completed, on whichever thread's stream.
  if (scope.ok()) {
    for (const CUstream stream : context.streams().all()) driver_.cuStreamSynchronize(stream);
  }
  for (auto& pool : pools_) {
    const CUmemoryPool handle = pool.load(std::memory_order_acquire);
    if (handle != nullptr) driver_.cuMemPoolTrimTo(handle, 0);
  }
}

stats::PoolFigures PoolBackend::figures() const {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  stats::PoolFigures figures;
  CUmemoryPool previous = nullptr;
  for (const auto& pool : pools_) {
    const CUmemoryPool handle = pool.load(std::memory_order_acquire);
    if (handle == nullptr || handle == previous) continue;
    previous = handle;  // with CUPOOL_POOL=default both are the same one
    const auto read = [&](CUmemPool_attribute attribute, std::uint64_t* sum) {
      cuuint64_t value = 0;
      if (!read_attribute(handle, attribute, &value)) return false;
      *sum += value;
      return true;
    };
    figures.valid = read(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &figures.reserved_current) &&
                    read(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &figures.reserved_high) &&
                    read(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &figures.used_current) &&
                    read(CU_MEMPOOL_ATTR_USED_MEM_HIGH, &figures.used_high);
    if (!figures.valid) break;
  }
  return figures;
}

// A program that asks for all that is called free is to get it, and to load its code after that
// (contracts 4 and 5), so these bytes are not called free.
std::uint64_t PoolBackend::pinned_bytes() const {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  std::uint64_t sum = 0;
  CUmemoryPool previous = nullptr;
  for (const auto& pool : pools_) {
    const CUmemoryPool handle = pool.load(std::memory_order_acquire);
    if (handle == nullptr || handle == previous) continue;
    previous = handle;
    if (attribute_of(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) != 0) sum += kGrowthStep;
  }
  return sum;
}

CUresult PoolBackend::pool_of(Kind kind, CUstream stream, CUmemoryPool* pool) {
  *pool = pools_[kind].load(std::memory_order_acquire);
  if (*pool != nullptr) return CUDA_SUCCESS;
  const std::lock_guard<std::mutex> lock(create_mutex_);
  *pool = pools_[kind].load(std::memory_order_relaxed);
  if (*pool != nullptr) return CUDA_SUCCESS;
  const CUresult result = create(kind, stream, pool);
  if (result != CUDA_SUCCESS) return result;
  pools_[kind].store(*pool, std::memory_order_release);
  return peer_refused_.load(std::memory_order_relaxed) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult PoolBackend::create(Kind kind, CUstream stream, CUmemoryPool* pool) {
  if (device_.limits().use_default_pool) {
    const CUresult result = driver_.cuDeviceGetDefaultMemPool(pool, device_.ordinal());
    if (result == CUDA_SUCCESS) configure(kind, *pool);
    return result;
  }
  if (exportable_ == Exportable::unknown && !handles_supported()) exportable_ = Exportable::no;
  // A second attempt: without handles, this pool's memory could never be shared.
  constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (exportable_ != Exportable::no &&
      (create_with(kFile, pool) == CUDA_SUCCESS || create_with(kFile, pool) == CUDA_SUCCESS)) {
    configure(kind, *pool);
    if (exportable_ == Exportable::yes || gives_back(*pool, stream)) {
      exportable_ = Exportable::yes;
      shareable_[kind].store(true, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    }
    driver_.cuMemPoolDestroy(*pool);
    exportable_ = Exportable::no;
    CUPOOL_LOG(info, "device %d: pools that can be shared do not give memory back; not using them",
               device_.ordinal());
  }
  const CUresult result = create_with(CU_MEM_HANDLE_TYPE_NONE, pool);
  if (result == CUDA_SUCCESS) configure(kind, *pool);
  return result;
}

CUresult PoolBackend::create_with(CUmemAllocationHandleType handle, CUmemoryPool* pool) const {
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = handle;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_.ordinal();
#if CUDA_VERSION >= 12020
  // The driver's own bound on each pool; would_exceed_maximum() holds their sum.
  if (driver_.version >= 12020) properties.maxSize = device_.limits().max_size;
#endif
  return driver_.cuMemPoolCreate(pool, &properties);
}

void PoolBackend::configure(Kind kind, CUmemoryPool pool) {
  const Device::Limits& limits = device_.limits();
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
  admitted_[kind].reset();
  for (const int peer : device_.peers()) {
    if (device_in_use(peer)) grant(kind, pool, peer);
  }
}

void PoolBackend::set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value,
                                const char* option) const {
  const CUresult result = driver_.cuMemPoolSetAttribute(pool, attribute, value);
  if (result != CUDA_SUCCESS) {
    CUPOOL_WARN_ONCE("the driver refused %s with error %d; its own setting stays", option,
                     static_cast<int>(result));
  }
}

void PoolBackend::admit(int peer) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::lock_guard<std::mutex> lock(create_mutex_);
  CUmemoryPool previous = nullptr;
  for (const Kind kind : {kSmall, kLarge}) {
    const CUmemoryPool handle = pools_[kind].load(std::memory_order_relaxed);
    if (handle != nullptr && handle != previous) grant(kind, handle, peer);
    previous = handle;
  }
}

// Legacy memory can be copied between devices without peer access, and pool memory cannot: a copy
// to a device that the pool does not admit reports success and writes nothing (measured). So no
// more memory comes from pools that refused a device. A pool that was made while the device came
// into use has admitted it already.
void PoolBackend::grant(Kind kind, CUmemoryPool pool, int peer) {
  if (admitted_[kind].test(static_cast<std::size_t>(peer))) return;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = peer;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUresult result = driver_.cuMemPoolSetAccess(pool, &access, 1);
  if (result != CUDA_SUCCESS) result = driver_.cuMemPoolSetAccess(pool, &access, 1);
  if (result == CUDA_SUCCESS) {
    admitted_[kind].set(static_cast<std::size_t>(peer));
    return;
  }
  peer_refused_.store(true, std::memory_order_relaxed);
  CUPOOL_LOG(info, "device %d cannot be given access to the pool of device %d (error %d)", peer,
             device_.ordinal(), static_cast<int>(result));
}

// The two pools share one CUPOOL_MAX_SIZE; the driver knows it only for each by itself.
bool PoolBackend::would_exceed_maximum(std::uint64_t capacity) const {
  const std::uint64_t maximum = device_.limits().max_size;
  if (maximum == 0) return false;
  const std::uint64_t held =
      static_cast<std::uint64_t>(device_.stats().value(stats::Gauge::held_bytes).current);
  return held + capacity > maximum;
}

// Asked only where the pool has to grow, which costs ten times as much as the question; and fifty
// times as much where the driver maps all that there is and then finds that it is not enough.
bool PoolBackend::lacks_room(CUmemoryPool pool, std::uint64_t capacity, Growth growth) const {
  const std::uint64_t reserved = attribute_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  const std::uint64_t used = attribute_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  if (reserved >= used + capacity) return false;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) return false;
  if (growth == Growth::to_the_limit) return reserved + free_bytes < used + capacity;
  const std::uint64_t steps = (capacity + kGrowthStep - 1) / kGrowthStep * kGrowthStep;
  return free_bytes < steps + kLeftFree;
}

}  // namespace cupool::core
