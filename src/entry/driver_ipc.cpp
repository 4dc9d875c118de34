// SPDX-License-Identifier: Apache-2.0
// Driver hooks of memory shared between processes (contract 8).
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/memory_hooks.h"
#include "process/lifecycle.h"

using cupool::engine::Allocator;
using cupool::engine::PointerQueries;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

template <typename Real>
CUresult open_handle(CUdeviceptr* address, const CUipcMemHandle& handle, const Real& real) {
  // A process may open memory before it allocates any.
  if (Allocator* allocator = started_engine()) {
    if (const auto opened = allocator->sharing().try_import(handle, address)) return *opened;
  }
  return real();
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuIpcGetMemHandle);
  const void* const caller = __builtin_return_address(0);
  Allocator* allocator = engine();
  if (allocator != nullptr) {
    if (const auto exported = allocator->sharing().try_export(address, handle)) return *exported;
  }
  const CUresult result = real.cuIpcGetMemHandle(handle, address);
  if (allocator != nullptr && result == CUDA_SUCCESS)
    allocator->queries().mark_shared_outside(address, PointerQueries::KnownBy::address,
                                             cupool::entry::known_until(caller));
  return result;
}

CUresult cupool_hook_cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle,
                                        unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuIpcOpenMemHandle);
  return open_handle(address, handle,
                     [&] { return real.cuIpcOpenMemHandle(address, handle, flags); });
}

CUresult cupool_hook_cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                                           unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuIpcOpenMemHandle_v2);
  return open_handle(address, handle,
                     [&] { return real.cuIpcOpenMemHandle_v2(address, handle, flags); });
}

CUresult cupool_hook_cuIpcCloseMemHandle(CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuIpcCloseMemHandle);
  if (Allocator* allocator = engine()) {
    if (const auto closed = allocator->sharing().imports().close(address)) return *closed;
  }
  return real.cuIpcCloseMemHandle(address);
}

}  // extern "C"
