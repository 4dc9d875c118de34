// SPDX-License-Identifier: Apache-2.0
// Explicit virtual memory (cuMemCreate and friends): one of the other allocators of a process that
// must not run out because of idle pool memory (contract 4).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace cupool::sim {

struct Device;

struct Physical {
  Device* device = nullptr;
  CUmemAllocationProp prop{};
  size_t bytes = 0;
  int file = -1;
  unsigned references = 1;  ///< the handle's, and one for each mapping
};

class VirtualMemory {
 public:
  CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes,
                  const CUmemAllocationProp* prop);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult reserve(CUdeviceptr* address, Device& device, size_t bytes);
  CUresult unreserve(CUdeviceptr address, size_t bytes);
  CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
               CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, size_t bytes);
  CUresult properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) const;

 private:
  struct Mapping {
    size_t bytes;
    CUmemGenericAllocationHandle handle;
  };
  void drop(CUmemGenericAllocationHandle handle);

  std::map<CUmemGenericAllocationHandle, Physical> physical_;
  std::map<uintptr_t, size_t> reserved_;
  std::map<uintptr_t, Mapping> mapped_;
  CUmemGenericAllocationHandle last_ = 0;
};

}  // namespace cupool::sim
