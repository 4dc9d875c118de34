// Pools that other processes can import: whether this driver's may be used, and what an importer
// needs of a block (docs/design.md, IPC).
#include <fcntl.h>

#include "core/backend_pool.h"
#include "core/size_class.h"
#include "cuda/scopes.h"
#include "util/log.h"

namespace cupool::core {

namespace {

template <typename Step>
bool works_at_once_or_again(const Step& step) {
  for (int tries = 0; tries < 2; ++tries) {
    if (step() == CUDA_SUCCESS) return true;
  }
  return false;
}

}  // namespace

bool PoolBackend::handles_supported() const {
  if (!device_.limits().ipc || driver_.cuMemPoolExportToShareableHandle == nullptr ||
      driver_.cuMemPoolExportPointer == nullptr || driver_.cuMemPoolDestroy == nullptr) {
    return false;
  }
  int types = 0;
  const auto ask = [&] {
    return driver_.cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
                                        device_.ordinal());
  };
  // A second attempt: the answer holds for all of this device's memory.
  return works_at_once_or_again(ask) && (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
}

// Older drivers are documented to keep the memory of such pools for ever, which contract 4 cannot
// bear. Proven on the empty pool; `stream` holds nothing, so that waiting for it is not waiting for
// the program's work (I4).
bool PoolBackend::gives_back(CUmemoryPool pool, CUstream stream) const {
  CUdeviceptr address = 0;
  cuuint64_t reserved = 0;
  // Each step twice if need be: a failure that says nothing of the pool is not taken for proof.
  return works_at_once_or_again(
             [&] { return driver_.cuMemAllocFromPoolAsync(&address, kAlignment, pool, stream); }) &&
         works_at_once_or_again([&] { return driver_.cuMemFreeAsync(address, stream); }) &&
         works_at_once_or_again([&] { return driver_.cuStreamSynchronize(stream); }) &&
         works_at_once_or_again([&] { return driver_.cuMemPoolTrimTo(pool, 0); }) &&
         works_at_once_or_again([&] {
           return driver_.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                                &reserved);
         }) &&
         reserved == 0;
}

bool PoolBackend::can_share(std::uint64_t capacity) const {
  return shareable_[is_large(capacity) ? kLarge : kSmall].load(std::memory_order_relaxed);
}

CUresult PoolBackend::share(std::uint64_t capacity, CUdeviceptr address, SharedMemory* memory) {
  if (!can_share(capacity)) {
    CUPOOL_WARN_ONCE(
        "this memory cannot be shared with other processes (CUPOOL_IPC=0, CUPOOL_POOL=default, or "
        "a driver without it); CUPOOL_BACKEND=malloc serves memory that can");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const Kind kind = is_large(capacity) ? kLarge : kSmall;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::lock_guard<std::mutex> lock(create_mutex_);
  // The driver exports pointers only of a pool that has been exported (measured).
  if (!files_[kind].valid()) {
    int file = -1;
    const auto export_pool = [&] {
      return driver_.cuMemPoolExportToShareableHandle(&file,
                                                      pools_[kind].load(std::memory_order_relaxed),
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    };
    CUresult result = export_pool();
    if (result != CUDA_SUCCESS) result = export_pool();
    if (result != CUDA_SUCCESS) return result;
    fcntl(file, F_SETFD, FD_CLOEXEC);
    files_[kind] = ipc::Descriptor(file);
  }
  memory->pool_file = files_[kind].get();
  memory->pool = static_cast<std::uint64_t>(device_.ordinal()) * kKinds + kind;
  // There is no other way to share pool memory: a second attempt.
  CUresult result = driver_.cuMemPoolExportPointer(&memory->pointer, address);
  if (result != CUDA_SUCCESS) {
    result = driver_.cuMemPoolExportPointer(&memory->pointer, address);
  }
  return result;
}

}  // namespace cupool::core
