// SPDX-License-Identifier: Apache-2.0
// Registers memory as a transport of UCX does, whose name it has: exports it and sets SYNC_MEMOPS.
#include <cuda.h>

extern "C" __attribute__((visibility("default"))) CUresult uct_register(CUdeviceptr address) {
  CUipcMemHandle handle;
  const CUresult result = cuIpcGetMemHandle(&handle, address);
  const unsigned int on = 1;
  if (result != CUDA_SUCCESS) return result;
  return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}
