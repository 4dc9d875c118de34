// SPDX-License-Identifier: Apache-2.0
// Registers memory as a transport of UCX does, whose name it has: asks whether there is a
// descriptor of it, exports it, and sets SYNC_MEMOPS.
#include <cuda.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) CUresult uct_register(CUdeviceptr address) {
  int descriptor = -1;
  CUresult result = cuMemGetHandleForAddressRange(&descriptor, address, 4096,
                                                  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result != CUDA_SUCCESS) return result;
  close(descriptor);
  CUipcMemHandle handle;
  result = cuIpcGetMemHandle(&handle, address);
  const unsigned int on = 1;
  if (result != CUDA_SUCCESS) return result;
  return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}
