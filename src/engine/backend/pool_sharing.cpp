// SPDX-License-Identifier: Apache-2.0
// Failed attempts are repeated, because their result decides for all memory of a pool.
#include "engine/backend/pool_sharing.h"

#include <fcntl.h>

#include "cuda/scopes.h"
#include "engine/block/size_class.h"
#include "util/log.h"

namespace cupool::engine {

namespace {

template <typename Step>
bool works_at_once_or_again(const Step& step) {
  for (int tries = 0; tries < 2; ++tries) {
    if (step() == CUDA_SUCCESS) return true;
  }
  return false;
}

}  // namespace

bool PoolSharing::handles_supported() const {
  if (!device_.limits.ipc || driver_.cuMemPoolExportToShareableHandle == nullptr ||
      driver_.cuMemPoolExportPointer == nullptr || driver_.cuMemPoolDestroy == nullptr) {
    return false;
  }
  int types = 0;
  const auto ask = [&] {
    return driver_.cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
                                        device_.ordinal);
  };
  // Tried twice: the answer holds for all memory of this device. Where there is none, the creation
  // of a pool tells.
  return !works_at_once_or_again(ask) || (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
}

// Whether the pool's memory can go back to the device. Older drivers are documented to keep the
// memory of such pools forever, which would break contract 4. Tested on the empty pool. `stream` is
// empty, so a wait for it does not wait for the program's work (I4).
CUresult PoolSharing::gives_back(CUmemoryPool pool, CUstream stream) const {
  CUdeviceptr address = 0;
  cuuint64_t reserved = 0;
  CUresult result = CUDA_SUCCESS;
  // Each step is tried twice: a failure unrelated to the pool is not a proof.
  const auto allocate = [&] {
    return result = driver_.cuMemAllocFromPoolAsync(&address, kAlignment, pool, stream);
  };
  if (!works_at_once_or_again(allocate) && result == CUDA_ERROR_OUT_OF_MEMORY) return result;
  const bool gives =
      result == CUDA_SUCCESS &&
      works_at_once_or_again([&] { return driver_.cuMemFreeAsync(address, stream); }) &&
      works_at_once_or_again([&] { return driver_.cuStreamSynchronize(stream); }) &&
      works_at_once_or_again([&] { return driver_.cuMemPoolTrimTo(pool, 0); }) &&
      works_at_once_or_again([&] {
        return driver_.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
      }) &&
      reserved == 0;
  return gives ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

bool PoolSharing::wants_handles() {
  if (exportable_ == Exportable::unknown && !handles_supported()) exportable_ = Exportable::no;
  return exportable_ != Exportable::no;
}

CUresult PoolSharing::accepts(PoolKind kind, CUmemoryPool pool, CUstream stream) {
  const CUresult result = exportable_ == Exportable::yes ? CUDA_SUCCESS : gives_back(pool, stream);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return result;
  if (result == CUDA_SUCCESS) {
    exportable_ = Exportable::yes;
    pools_[index_of(kind)].store(pool, std::memory_order_release);
    return result;
  }
  exportable_ = Exportable::no;
  CUPOOL_LOG(info,
             "device %d: this driver's shareable pools keep freed memory; memory cannot be shared "
             "with other processes",
             device_.ordinal);
  return result;
}

bool PoolSharing::can_share(std::uint64_t capacity) const {
  return pools_[index_of(pool_kind_of(capacity))].load(std::memory_order_acquire) != nullptr;
}

CUresult PoolSharing::share(std::uint64_t capacity, CUdeviceptr address, SharedMemory* memory) {
  const std::size_t kind = index_of(pool_kind_of(capacity));
  const CUmemoryPool pool = pools_[kind].load(std::memory_order_acquire);
  if (pool == nullptr) {
    CUPOOL_WARN_ONCE(
        "pool memory cannot be shared with other processes (CUPOOL_IPC=0, CUPOOL_POOL=default, or "
        "a driver without shareable pools). To share memory, set CUPOOL_BACKEND=malloc");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::lock_guard lock(mutex_);
  // The driver exports pointers only of an exported pool (measured).
  if (!files_[kind].keeps()) {
    int file = -1;
    const auto export_pool = [&] {
      return driver_.cuMemPoolExportToShareableHandle(&file, pool,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    };
    CUresult result = export_pool();
    if (result != CUDA_SUCCESS) result = export_pool();
    if (result != CUDA_SUCCESS) return result;
    fcntl(file, F_SETFD, FD_CLOEXEC);
    files_[kind] = util::Descriptor(file);
  }
  memory->pool_file = files_[kind].known();
  memory->pool = static_cast<std::uint64_t>(device_.ordinal) * kPoolKinds + kind;
  // Tried twice, because pool memory cannot be shared in another way.
  CUresult result = driver_.cuMemPoolExportPointer(&memory->pointer, address);
  if (result != CUDA_SUCCESS) {
    result = driver_.cuMemPoolExportPointer(&memory->pointer, address);
  }
  return result;
}

}  // namespace cupool::engine
