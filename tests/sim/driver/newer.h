// SPDX-License-Identifier: Apache-2.0
// Functions that cuda.h declares only from a later version on than 13.0, the two of api_future.cpp,
// and those of headers that need other libraries' headers.
#pragma once

#include <cuda.h>

extern "C" {
// cudaGL.h
CUresult CUDAAPI cuGLCtxCreate(CUcontext*, unsigned int, CUdevice);
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext*, unsigned int, CUdevice);
#if CUDA_VERSION < 13010
CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream, CUhostFn, void*, unsigned int);
CUresult CUDAAPI cuLaunchHostFunc_v2_ptsz(CUstream, CUhostFn, void*, unsigned int);
#endif
#if CUDA_VERSION < 13020
CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes*,
                                             CUstream);
CUresult CUDAAPI cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr, CUdeviceptr, size_t,
                                                  CUmemcpyAttributes*, CUstream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP*, unsigned long long,
                                               CUstream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP*, unsigned long long,
                                                    CUstream);
#endif
#if CUDA_VERSION < 13030
typedef CUresult(CUDA_CB* CUgraphRecaptureCallback)(void*, CUgraphNode, const CUgraphNodeParams*,
                                                    const CUgraphNodeParams*, int);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream, CUstreamCaptureMode, CUgraph,
                                               CUgraphRecaptureCallback, void*);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream, CUstreamCaptureMode, CUgraph,
                                                    CUgraphRecaptureCallback, void*);
#endif
CUresult CUDAAPI cuMemcpyAsync_v9(CUdeviceptr, CUdeviceptr, size_t, CUstream, unsigned long long,
                                  double, unsigned long long, unsigned long long);
CUresult CUDAAPI cuMemcpyTomorrowAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
}
