// SPDX-License-Identifier: Apache-2.0
// Driver hooks of work that only a lane has to see (engine/reclaim/lane.h): untouched, and reported
// with the stream that it goes to.
#include "engine/context/submission.h"
#include "entry/default_stream.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/peers.h"

using cupool::cuda::EglFrame;
using cupool::engine::CallsUnderWay;
using cupool::engine::Submission;
using cupool::engine::submits_unknown;
using cupool::entry::are_apart;
using cupool::entry::legacy;
using cupool::entry::per_thread;

#define CUPOOL_SUBMITTED_AS(symbol, to_stream, parameters, arguments) \
  CUresult cupool_hook_##symbol parameters {                          \
    CUPOOL_REAL_OR_RETURN(symbol);                                    \
    const Submission submission(real, to_stream, #symbol);            \
    return real.symbol arguments;                                     \
  }
// Each with its form for per-thread default streams.
#define CUPOOL_SUBMITTED(name, parameters, arguments)                \
  CUPOOL_SUBMITTED_AS(name, CU_STREAM_LEGACY, parameters, arguments) \
  CUPOOL_SUBMITTED_AS(name##_ptds, CU_STREAM_PER_THREAD, parameters, arguments)
#define CUPOOL_SUBMITTED_TO(name, parameters, arguments)           \
  CUPOOL_SUBMITTED_AS(name, legacy(stream), parameters, arguments) \
  CUPOOL_SUBMITTED_AS(name##_ptsz, per_thread(stream), parameters, arguments)
#define CUPOOL_PEER_AS(symbol, to_stream, parameters, apart, arguments) \
  CUresult cupool_hook_##symbol parameters {                            \
    CUPOOL_REAL_OR_RETURN(symbol);                                      \
    if (apart) submits_unknown(real, #symbol);                          \
    const Submission submission(real, to_stream, #symbol);              \
    return real.symbol arguments;                                       \
  }
#define CUPOOL_PEER(name, parameters, apart, arguments)                \
  CUPOOL_PEER_AS(name, CU_STREAM_LEGACY, parameters, apart, arguments) \
  CUPOOL_PEER_AS(name##_ptds, CU_STREAM_PER_THREAD, parameters, apart, arguments)
#define CUPOOL_UNASSIGNED(symbol, parameters, arguments) \
  CUresult cupool_hook_##symbol parameters {             \
    CUPOOL_REAL_OR_RETURN(symbol);                       \
    submits_unknown(real, #symbol);                      \
    const CallsUnderWay::Call call;                      \
    return real.symbol arguments;                        \
  }

extern "C" {

// clang-format off
// Synchronous: to the default stream.
CUPOOL_SUBMITTED(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
CUPOOL_SUBMITTED(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes), (to, from, bytes))
CUPOOL_SUBMITTED(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes), (to, from, bytes))
CUPOOL_SUBMITTED(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
CUPOOL_SUBMITTED(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes), (to, offset, from, bytes))
CUPOOL_SUBMITTED(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes), (to, from, offset, bytes))
CUPOOL_SUBMITTED(cuMemcpyHtoA_v2, (CUarray to, size_t offset, const void* from, size_t bytes), (to, offset, from, bytes))
CUPOOL_SUBMITTED(cuMemcpyAtoH_v2, (void* to, CUarray from, size_t offset, size_t bytes), (to, from, offset, bytes))
CUPOOL_SUBMITTED(cuMemcpyAtoA_v2, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes), (to, to_offset, from, from_offset, bytes))
CUPOOL_SUBMITTED(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* copy), (copy))
CUPOOL_SUBMITTED(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* copy), (copy))
CUPOOL_SUBMITTED(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* copy), (copy))
CUPOOL_SUBMITTED(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count))
CUPOOL_SUBMITTED(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count), (to, value, count))
CUPOOL_SUBMITTED(cuMemsetD32_v2, (CUdeviceptr to, unsigned int value, size_t count), (to, value, count))
CUPOOL_SUBMITTED(cuMemsetD2D8_v2, (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height), (to, pitch, value, width, height))
CUPOOL_SUBMITTED(cuMemsetD2D16_v2, (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height), (to, pitch, value, width, height))
CUPOOL_SUBMITTED(cuMemsetD2D32_v2, (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height), (to, pitch, value, width, height))
CUPOOL_SUBMITTED(cuGLMapBufferObject_v2, (CUdeviceptr* address, size_t* bytes, unsigned int buffer), (address, bytes, buffer))

// To the stream that they name.
CUPOOL_SUBMITTED_TO(cuMemPrefetchAsync, (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream), (address, bytes, device, stream))
CUPOOL_SUBMITTED_TO(cuMemPrefetchAsync_v2, (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags, CUstream stream), (address, bytes, location, flags, stream))
CUPOOL_SUBMITTED_TO(cuMemPrefetchBatchAsync, (CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations, size_t* location_indices, size_t location_count, unsigned long long flags, CUstream stream), (addresses, bytes, count, locations, location_indices, location_count, flags, stream))
CUPOOL_SUBMITTED_TO(cuMemDiscardBatchAsync, (CUdeviceptr* addresses, size_t* bytes, size_t count, unsigned long long flags, CUstream stream), (addresses, bytes, count, flags, stream))
CUPOOL_SUBMITTED_TO(cuMemDiscardAndPrefetchBatchAsync, (CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations, size_t* location_indices, size_t location_count, unsigned long long flags, CUstream stream), (addresses, bytes, count, locations, location_indices, location_count, flags, stream))
CUPOOL_SUBMITTED_TO(cuMemMapArrayAsync, (void* maps, unsigned int count, CUstream stream), (maps, count, stream))
CUPOOL_SUBMITTED_TO(cuStreamAttachMemAsync, (CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags), (stream, address, bytes, flags))
CUPOOL_SUBMITTED_TO(cuSignalExternalSemaphoresAsync, (const void* semaphores, const void* parameters, unsigned int count, CUstream stream), (semaphores, parameters, count, stream))
CUPOOL_SUBMITTED_TO(cuWaitExternalSemaphoresAsync, (const void* semaphores, const void* parameters, unsigned int count, CUstream stream), (semaphores, parameters, count, stream))
CUPOOL_SUBMITTED_TO(cuGraphicsMapResources, (unsigned int count, CUgraphicsResource* resources, CUstream stream), (count, resources, stream))
CUPOOL_SUBMITTED_TO(cuGraphicsUnmapResources, (unsigned int count, CUgraphicsResource* resources, CUstream stream), (count, resources, stream))
CUPOOL_SUBMITTED_TO(cuGLMapBufferObjectAsync_v2, (CUdeviceptr* address, size_t* bytes, unsigned int buffer, CUstream stream), (address, bytes, buffer, stream))

// Between contexts.
CUPOOL_PEER(cuMemcpyPeer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes), are_apart(from_context, to_context), (to, to_context, from, from_context, bytes))
CUPOOL_PEER(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER* copy), are_apart(copy), (copy))

// Of the first versions of CUDA, without a form for per-thread default streams.
CUPOOL_SUBMITTED_AS(cuMemcpyHtoD, CU_STREAM_LEGACY, (unsigned int to, const void* from, unsigned int bytes), (to, from, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpyDtoH, CU_STREAM_LEGACY, (void* to, unsigned int from, unsigned int bytes), (to, from, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpyDtoD, CU_STREAM_LEGACY, (unsigned int to, unsigned int from, unsigned int bytes), (to, from, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpyDtoA, CU_STREAM_LEGACY, (CUarray to, unsigned int offset, unsigned int from, unsigned int bytes), (to, offset, from, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpyAtoD, CU_STREAM_LEGACY, (unsigned int to, CUarray from, unsigned int offset, unsigned int bytes), (to, from, offset, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpyHtoA, CU_STREAM_LEGACY, (CUarray to, unsigned int offset, const void* from, unsigned int bytes), (to, offset, from, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpyAtoH, CU_STREAM_LEGACY, (void* to, CUarray from, unsigned int offset, unsigned int bytes), (to, from, offset, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpyAtoA, CU_STREAM_LEGACY, (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset, unsigned int bytes), (to, to_offset, from, from_offset, bytes))
CUPOOL_SUBMITTED_AS(cuMemcpy2D, CU_STREAM_LEGACY, (const void* copy), (copy))
CUPOOL_SUBMITTED_AS(cuMemcpy2DUnaligned, CU_STREAM_LEGACY, (const void* copy), (copy))
CUPOOL_SUBMITTED_AS(cuMemcpy3D, CU_STREAM_LEGACY, (const void* copy), (copy))
CUPOOL_SUBMITTED_AS(cuMemsetD8, CU_STREAM_LEGACY, (unsigned int to, unsigned char value, unsigned int count), (to, value, count))
CUPOOL_SUBMITTED_AS(cuMemsetD16, CU_STREAM_LEGACY, (unsigned int to, unsigned short value, unsigned int count), (to, value, count))
CUPOOL_SUBMITTED_AS(cuMemsetD32, CU_STREAM_LEGACY, (unsigned int to, unsigned int value, unsigned int count), (to, value, count))
CUPOOL_SUBMITTED_AS(cuMemsetD2D8, CU_STREAM_LEGACY, (unsigned int to, unsigned int pitch, unsigned char value, unsigned int width, unsigned int height), (to, pitch, value, width, height))
CUPOOL_SUBMITTED_AS(cuMemsetD2D16, CU_STREAM_LEGACY, (unsigned int to, unsigned int pitch, unsigned short value, unsigned int width, unsigned int height), (to, pitch, value, width, height))
CUPOOL_SUBMITTED_AS(cuMemsetD2D32, CU_STREAM_LEGACY, (unsigned int to, unsigned int pitch, unsigned int value, unsigned int width, unsigned int height), (to, pitch, value, width, height))
CUPOOL_SUBMITTED_AS(cuLaunch, CU_STREAM_LEGACY, (CUfunction function), (function))
CUPOOL_SUBMITTED_AS(cuLaunchGrid, CU_STREAM_LEGACY, (CUfunction function, int width, int height), (function, width, height))
CUPOOL_SUBMITTED_AS(cuGLMapBufferObject, CU_STREAM_LEGACY, (unsigned int* address, unsigned int* bytes, unsigned int buffer), (address, bytes, buffer))
CUPOOL_SUBMITTED_AS(cuGLUnmapBufferObject, CU_STREAM_LEGACY, (unsigned int buffer), (buffer))
CUPOOL_SUBMITTED_AS(cuMemcpyHtoDAsync, legacy(stream), (unsigned int to, const void* from, unsigned int bytes, CUstream stream), (to, from, bytes, stream))
CUPOOL_SUBMITTED_AS(cuMemcpyDtoHAsync, legacy(stream), (void* to, unsigned int from, unsigned int bytes, CUstream stream), (to, from, bytes, stream))
CUPOOL_SUBMITTED_AS(cuMemcpyDtoDAsync, legacy(stream), (unsigned int to, unsigned int from, unsigned int bytes, CUstream stream), (to, from, bytes, stream))
CUPOOL_SUBMITTED_AS(cuMemcpyHtoAAsync, legacy(stream), (CUarray to, unsigned int offset, const void* from, unsigned int bytes, CUstream stream), (to, offset, from, bytes, stream))
CUPOOL_SUBMITTED_AS(cuMemcpyAtoHAsync, legacy(stream), (void* to, CUarray from, unsigned int offset, unsigned int bytes, CUstream stream), (to, from, offset, bytes, stream))
CUPOOL_SUBMITTED_AS(cuMemcpy2DAsync, legacy(stream), (const void* copy, CUstream stream), (copy, stream))
CUPOOL_SUBMITTED_AS(cuMemcpy3DAsync, legacy(stream), (const void* copy, CUstream stream), (copy, stream))
CUPOOL_SUBMITTED_AS(cuLaunchGridAsync, legacy(stream), (CUfunction function, int width, int height, CUstream stream), (function, width, height, stream))
CUPOOL_SUBMITTED_AS(cuGLMapBufferObjectAsync, legacy(stream), (unsigned int* address, unsigned int* bytes, unsigned int buffer, CUstream stream), (address, bytes, buffer, stream))
CUPOOL_SUBMITTED_AS(cuGLUnmapBufferObjectAsync, legacy(stream), (unsigned int buffer, CUstream stream), (buffer, stream))

// To several streams, or to one that the driver chooses.
CUPOOL_UNASSIGNED(cuLaunchCooperativeKernelMultiDevice, (void* launches, unsigned int count, unsigned int flags), (launches, count, flags))
CUPOOL_UNASSIGNED(cuEGLStreamConsumerAcquireFrame, (void* connection, CUgraphicsResource* resource, CUstream* stream, unsigned int timeout), (connection, resource, stream, timeout))
CUPOOL_UNASSIGNED(cuEGLStreamConsumerReleaseFrame, (void* connection, CUgraphicsResource resource, CUstream* stream), (connection, resource, stream))
CUPOOL_UNASSIGNED(cuEGLStreamProducerPresentFrame, (void* connection, EglFrame frame, CUstream* stream), (connection, frame, stream))
CUPOOL_UNASSIGNED(cuEGLStreamProducerReturnFrame, (void* connection, void* frame, CUstream* stream), (connection, frame, stream))
// clang-format on

}  // extern "C"
