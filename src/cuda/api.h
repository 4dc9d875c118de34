// SPDX-License-Identifier: Apache-2.0
// The driver API's types, without the macro renaming of cuda.h: this library names exported
// symbols, and `cuMemAlloc_v2` must mean exactly that symbol.
#pragma once

#include <cuda.h>

#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuCtxPopCurrent
#undef cuCtxPushCurrent
#undef cuCtxSynchronize
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuEventElapsedTime
#undef cuEventRecord
#undef cuEventRecordWithFlags
#undef cuGetProcAddress
#undef cuGraphAddNode
#undef cuGraphInstantiate
#undef cuGraphInstantiateWithParams
#undef cuGraphLaunch
#undef cuGraphUpload
#undef cuGraphicsMapResources
#undef cuGraphicsUnmapResources
#undef cuIpcOpenMemHandle
#undef cuLaunchCooperativeKernel
#undef cuLaunchHostFunc
#undef cuLaunchKernel
#undef cuLaunchKernelEx
#undef cuMemAllocAsync
#undef cuMemAllocFromPoolAsync
#undef cuMemAllocHost
#undef cuMemBatchDecompressAsync
#undef cuMemDiscardAndPrefetchBatchAsync
#undef cuMemDiscardBatchAsync
#undef cuMemFreeAsync
#undef cuMemHostRegister
#undef cuMemMapArrayAsync
#undef cuMemPrefetchAsync
#undef cuMemPrefetchBatchAsync
#undef cuMemcpy
#undef cuMemcpy2D
#undef cuMemcpy2DAsync
#undef cuMemcpy2DUnaligned
#undef cuMemcpy3D
#undef cuMemcpy3DAsync
#undef cuMemcpy3DBatchAsync
#undef cuMemcpy3DPeer
#undef cuMemcpy3DPeerAsync
#undef cuMemcpy3DWithAttributesAsync
#undef cuMemcpyAsync
#undef cuMemcpyAtoA
#undef cuMemcpyAtoD
#undef cuMemcpyAtoH
#undef cuMemcpyAtoHAsync
#undef cuMemcpyBatchAsync
#undef cuMemcpyDtoA
#undef cuMemcpyDtoD
#undef cuMemcpyDtoDAsync
#undef cuMemcpyDtoH
#undef cuMemcpyDtoHAsync
#undef cuMemcpyHtoA
#undef cuMemcpyHtoAAsync
#undef cuMemcpyHtoD
#undef cuMemcpyHtoDAsync
#undef cuMemcpyPeer
#undef cuMemcpyPeerAsync
#undef cuMemcpyWithAttributesAsync
#undef cuMemsetD16
#undef cuMemsetD16Async
#undef cuMemsetD2D16
#undef cuMemsetD2D16Async
#undef cuMemsetD2D32
#undef cuMemsetD2D32Async
#undef cuMemsetD2D8
#undef cuMemsetD2D8Async
#undef cuMemsetD32
#undef cuMemsetD32Async
#undef cuMemsetD8
#undef cuMemsetD8Async
#undef cuSignalExternalSemaphoresAsync
#undef cuStreamAddCallback
#undef cuStreamAttachMemAsync
#undef cuStreamBatchMemOp
#undef cuStreamBeginCapture
#undef cuStreamBeginCaptureToGraph
#undef cuStreamBeginRecaptureToGraph
#undef cuStreamDestroy
#undef cuStreamEndCapture
#undef cuStreamGetCtx
#undef cuStreamGetFlags
#undef cuStreamIsCapturing
#undef cuStreamQuery
#undef cuStreamSynchronize
#undef cuStreamWaitEvent
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuWaitExternalSemaphoresAsync

namespace cupool::cuda {

/// CUeglFrame of cudaEGL.h, which not every toolkit has. Passed by value, and never looked into.
struct EglFrame {
  void* planes[3];
  unsigned int rest[10];
};

/// CUlaunchAttribute and CUlaunchConfig, which toolkits have from CUDA 11.8 on.
struct LaunchAttribute {
  int id;
  char pad[4];
  alignas(8) char value[64];
};
struct LaunchConfiguration {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int shared_bytes;
  CUstream stream;
  const LaunchAttribute* attributes;
  unsigned int attribute_count;
};
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
inline constexpr int kProgrammaticStreamSerialization = 6;

}  // namespace cupool::cuda
