// SPDX-License-Identifier: Apache-2.0
// Exported: streams, events, host functions, capture and graphs.
#include "runtime/runtime.h"

namespace cupool::sim::runtime {

namespace {

CUstreamCaptureStatus* status_of(cudaStreamCaptureStatus* s) {
  return reinterpret_cast<CUstreamCaptureStatus*>(s);
}

template <bool pt>
cudaError_t capture_info(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id,
                         cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                         const cudaGraphEdgeData** edges, size_t* count) {
  cuuint64_t number = 0;
  const CUgraphEdgeData* edge_data = nullptr;
  const cudaError_t error = call(RT_PICK(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz),
                                 s, status_of(status), &number, graph, nodes, &edge_data, count);
  if (error == cudaSuccess && id != nullptr) *id = number;
  if (error == cudaSuccess && edges != nullptr) {
    *edges = reinterpret_cast<const cudaGraphEdgeData*>(edge_data);
  }
  return error;
}

cudaError_t create_event(cudaEvent_t* event, unsigned flags) {
  return call(driver().cuEventCreate, event, flags);
}

}  // namespace

RT_DEFINE(cudaStreamCreate, (cudaStream_t * s), call(driver().cuStreamCreate, s, 0u))
RT_DEFINE(cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned int flags),
          call(driver().cuStreamCreate, s, flags))
RT_DEFINE(cudaStreamCreateWithPriority, (cudaStream_t * s, unsigned int flags, int priority),
          call(driver().cuStreamCreateWithPriority, s, flags, priority))
RT_DEFINE(cudaStreamDestroy, (cudaStream_t s), call(driver().cuStreamDestroy_v2, s))
RT_TWINS(cudaStreamSynchronize, cudaStreamSynchronize_ptsz, (cudaStream_t s),
         call(RT_PICK(cuStreamSynchronize, cuStreamSynchronize_ptsz), s))
RT_TWINS(cudaStreamQuery, cudaStreamQuery_ptsz, (cudaStream_t s),
         call(RT_PICK(cuStreamQuery, cuStreamQuery_ptsz), s))
RT_TWINS(cudaStreamWaitEvent, cudaStreamWaitEvent_ptsz,
         (cudaStream_t s, cudaEvent_t event, unsigned int flags),
         call(RT_PICK(cuStreamWaitEvent, cuStreamWaitEvent_ptsz), s, event, flags))
RT_TWINS(cudaStreamGetFlags, cudaStreamGetFlags_ptsz, (cudaStream_t s, unsigned int* flags),
         call(RT_PICK(cuStreamGetFlags, cuStreamGetFlags_ptsz), s, flags))
RT_TWINS(cudaStreamGetPriority, cudaStreamGetPriority_ptsz, (cudaStream_t s, int* priority),
         call(RT_PICK(cuStreamGetPriority, cuStreamGetPriority_ptsz), s, priority))
RT_TWINS(cudaStreamGetId, cudaStreamGetId_ptsz, (cudaStream_t s, unsigned long long* id),
         call(RT_PICK(cuStreamGetId, cuStreamGetId_ptsz), s, id))
RT_TWINS(cudaLaunchHostFunc, cudaLaunchHostFunc_ptsz,
         (cudaStream_t s, cudaHostFn_t function, void* data),
         call(RT_PICK(cuLaunchHostFunc, cuLaunchHostFunc_ptsz), s, function, data))
RT_TWINS(cudaStreamAddCallback, cudaStreamAddCallback_ptsz,
         (cudaStream_t s, cudaStreamCallback_t function, void* data, unsigned int flags),
         call(RT_PICK(cuStreamAddCallback, cuStreamAddCallback_ptsz), s,
              reinterpret_cast<CUstreamCallback>(function), data, flags))

RT_DEFINE(cudaEventCreate, (cudaEvent_t * event), create_event(event, 0))
RT_DEFINE(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags),
          create_event(event, flags))
RT_DEFINE(cudaEventDestroy, (cudaEvent_t event), call(driver().cuEventDestroy_v2, event))
RT_TWINS(cudaEventRecord, cudaEventRecord_ptsz, (cudaEvent_t event, cudaStream_t s),
         call(RT_PICK(cuEventRecord, cuEventRecord_ptsz), event, s))
RT_TWINS(cudaEventRecordWithFlags, cudaEventRecordWithFlags_ptsz,
         (cudaEvent_t event, cudaStream_t s, unsigned int flags),
         call(RT_PICK(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz), event, s, flags))
RT_DEFINE(cudaEventQuery, (cudaEvent_t event), call(driver().cuEventQuery, event))
RT_DEFINE(cudaEventSynchronize, (cudaEvent_t event), call(driver().cuEventSynchronize, event))
RT_DEFINE(cudaEventElapsedTime, (float* ms, cudaEvent_t start, cudaEvent_t end),
          call(driver().cuEventElapsedTime_v2, ms, start, end))

RT_TWINS(cudaStreamBeginCapture, cudaStreamBeginCapture_ptsz,
         (cudaStream_t s, cudaStreamCaptureMode mode),
         call(RT_PICK(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz), s,
              static_cast<CUstreamCaptureMode>(mode)))
RT_TWINS(cudaStreamBeginCaptureToGraph, cudaStreamBeginCaptureToGraph_ptsz,
         (cudaStream_t s, cudaGraph_t graph, const cudaGraphNode_t* after,
          const cudaGraphEdgeData* edges, size_t count, cudaStreamCaptureMode mode),
         call(RT_PICK(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz), s, graph,
              after, reinterpret_cast<const CUgraphEdgeData*>(edges), count,
              static_cast<CUstreamCaptureMode>(mode)))
RT_TWINS(cudaStreamEndCapture, cudaStreamEndCapture_ptsz, (cudaStream_t s, cudaGraph_t* graph),
         call(RT_PICK(cuStreamEndCapture, cuStreamEndCapture_ptsz), s, graph))
RT_TWINS(cudaStreamIsCapturing, cudaStreamIsCapturing_ptsz,
         (cudaStream_t s, cudaStreamCaptureStatus* status),
         call(RT_PICK(cuStreamIsCapturing, cuStreamIsCapturing_ptsz), s, status_of(status)))
RT_TWINS(cudaStreamGetCaptureInfo, cudaStreamGetCaptureInfo_ptsz,
         (cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id,
          cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
          size_t* count),
         capture_info<pt>(s, status, id, graph, nodes, edges, count))
RT_DEFINE(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * mode),
          call(driver().cuThreadExchangeStreamCaptureMode,
               reinterpret_cast<CUstreamCaptureMode*>(mode)))

RT_DEFINE(cudaGraphCreate, (cudaGraph_t * graph, unsigned int flags),
          call(driver().cuGraphCreate, graph, flags))
RT_DEFINE(cudaGraphDestroy, (cudaGraph_t graph), call(driver().cuGraphDestroy, graph))
RT_DEFINE(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count),
          call(driver().cuGraphGetNodes, graph, nodes, count))
RT_DEFINE(cudaGraphInstantiate,
          (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
          call(driver().cuGraphInstantiateWithFlags, exec, graph, flags))
RT_DEFINE(cudaGraphInstantiateWithFlags,
          (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
          call(driver().cuGraphInstantiateWithFlags, exec, graph, flags))
RT_DEFINE(cudaGraphExecDestroy, (cudaGraphExec_t exec), call(driver().cuGraphExecDestroy, exec))
RT_TWINS(cudaGraphLaunch, cudaGraphLaunch_ptsz, (cudaGraphExec_t exec, cudaStream_t s),
         call(RT_PICK(cuGraphLaunch, cuGraphLaunch_ptsz), exec, s))

}  // namespace cupool::sim::runtime
