// The driver API's types, without the renaming that cuda.h does by macro: this library speaks of
// exported symbols, and `cuMemAlloc_v2` has to mean just that symbol.
#pragma once

#include <cuda.h>

#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuCtxPopCurrent
#undef cuCtxPushCurrent
#undef cuCtxSynchronize
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuEventRecord
#undef cuGetProcAddress
#undef cuGraphInstantiate
#undef cuGraphInstantiateWithParams
#undef cuGraphLaunch
#undef cuGraphUpload
#undef cuIpcOpenMemHandle
#undef cuLaunchCooperativeKernel
#undef cuLaunchHostFunc
#undef cuLaunchKernel
#undef cuLaunchKernelEx
#undef cuMemAllocAsync
#undef cuMemAllocFromPoolAsync
#undef cuMemFreeAsync
#undef cuMemHostRegister
#undef cuMemcpy3DBatchAsync
#undef cuMemcpy3DWithAttributesAsync
#undef cuMemcpyAsync
#undef cuMemcpyBatchAsync
#undef cuMemcpyWithAttributesAsync
#undef cuStreamAddCallback
#undef cuStreamBeginCapture
#undef cuStreamBeginCaptureToGraph
#undef cuStreamBeginRecaptureToGraph
#undef cuStreamDestroy
#undef cuStreamEndCapture
#undef cuStreamGetCtx
#undef cuStreamIsCapturing
#undef cuStreamQuery
#undef cuStreamSynchronize
