// SPDX-License-Identifier: Apache-2.0
// Exported: stream capture and graphs.
#include "driver/entry.h"
#include "driver/newer.h"

namespace cupool::sim {

namespace {

Graph* known_graph(CUgraph handle) {
  auto* const graph = reinterpret_cast<Graph*>(handle);
  return handle != nullptr && world().graphs.known(graph) ? graph : nullptr;
}

CUresult begin(Entry& in, CUstream handle, CUstreamCaptureMode mode) {
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  return result == CUDA_SUCCESS ? world().captures.begin(*stream, mode, nullptr, {}) : result;
}

// The program's graph outlives the capture, even one that is invalidated; what was captured until
// then stays in it.
CUresult begin_into(Entry& in, CUstream handle, CUgraph into, const CUgraphNode* after,
                    size_t count, CUstreamCaptureMode mode) {
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  Graph* const graph = known_graph(into);
  if (graph == nullptr || (count != 0 && after == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> nodes;
  for (size_t i = 0; i < count; ++i) {
    GraphNode* const node = graph->node(after[i]);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    nodes.push_back(node);
  }
  return world().captures.begin(*stream, mode, graph, std::move(nodes));
}

// The nodes take the place of those that were there. That they are the same ones is not compared.
CUresult begin_again(Entry& in, CUstream handle, CUgraph into, CUstreamCaptureMode mode) {
  Graph* const graph = known_graph(into);
  if (graph == nullptr || world().captures.into(*graph)) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) result = world().captures.begin(*stream, mode, graph, {});
  if (result == CUDA_SUCCESS) graph->nodes.clear();
  return result;
}

CUresult end(Entry& in, CUstream handle, CUgraph* graph) {
  Stream* stream = nullptr;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  return result == CUDA_SUCCESS ? world().captures.end(*stream, graph) : result;
}

struct Info {
  CUstreamCaptureStatus* status = nullptr;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** nodes = nullptr;
  const CUgraphEdgeData** edges = nullptr;
  size_t* count = nullptr;
};

// Asking about the legacy stream while a blocking stream captures answers "implicit" and harms
// nothing (CUDA Driver API, cuStreamGetCaptureInfo; measured).
CUresult info(Entry& in, CUstream handle, const Info& out) {
  Stream* stream = nullptr;
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  in.costs(60);
  if (world().captures.legacy_is_entangled(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const Capture* const capture = stream->capture;
  if (capture == nullptr) return *out.status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
  *out.status =
      capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (!capture->valid) return CUDA_SUCCESS;
  if (out.id != nullptr) *out.id = capture->id;
  if (out.graph != nullptr) *out.graph = capture->graph->handle();
  if (out.nodes != nullptr) {
    *out.nodes = reinterpret_cast<const CUgraphNode*>(stream->capture_tail.data());
  }
  if (out.edges != nullptr) *out.edges = nullptr;
  if (out.count != nullptr) *out.count = stream->capture_tail.size();
  return CUDA_SUCCESS;
}

CUresult is_capturing(Entry& in, CUstream stream, CUstreamCaptureStatus* status) {
  Info out;
  out.status = status;
  return info(in, stream, out);
}

CUresult exchange(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  *mode = exchange_capture_mode(*mode);
  return CUDA_SUCCESS;
}

CUresult graph_create(Entry& in, CUgraph* handle, unsigned flags) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = world().graphs.create(*context).handle();
  return CUDA_SUCCESS;
}

CUresult graph_destroy(CUgraph handle) {
  Graph* const graph = known_graph(handle);
  if (graph == nullptr || world().captures.into(*graph)) return CUDA_ERROR_INVALID_VALUE;
  world().graphs.destroy(graph);
  return CUDA_SUCCESS;
}

CUresult graph_nodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  const Graph* const graph = known_graph(handle);
  if (graph == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes != nullptr) {
    for (size_t i = 0; i < *count && i < graph->nodes.size(); ++i) {
      nodes[i] = graph->nodes[i]->handle();
    }
  }
  *count = graph->nodes.size();
  return CUDA_SUCCESS;
}

// A graph made ready takes device memory (contract 4 names graph loading among those that can
// run out).
CUresult make_ready(Entry& in, CUgraphExec* handle, CUgraph graph_handle) {
  World& w = world();
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const Graph* const graph = known_graph(graph_handle);
  if (handle == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  // cuda.h, cuStreamBeginCaptureToGraph: "not instantiable until the user calls
  // cuStreamEndCapture".
  if (w.captures.into(*graph)) return CUDA_ERROR_INVALID_VALUE;
  std::unique_ptr<GraphExec> exec = instantiate(*graph);
  exec->memory = context->device->take(kChunkBytes);
  if (exec->memory == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  exec->context = context;
  context->graph_memory.insert(exec->memory);
  *handle = reinterpret_cast<CUgraphExec>(w.graphs.add(std::move(exec)));
  return CUDA_SUCCESS;
}

GraphExec* known_exec(CUgraphExec handle) {
  auto* const exec = reinterpret_cast<GraphExec*>(handle);
  return handle != nullptr && world().graphs.known(exec) ? exec : nullptr;
}

CUresult exec_destroy(CUgraphExec handle) {
  GraphExec* const exec = known_exec(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Gone already if the context was destroyed or reset in between.
  if (exec->context->graph_memory.erase(exec->memory) != 0) {
    exec->context->device->give(exec->memory, kChunkBytes);
  }
  world().graphs.destroy(exec);
  return CUDA_SUCCESS;
}

CUresult graph_launch(Entry& in, CUgraphExec handle, CUstream stream_handle) {
  Stream* stream = nullptr;
  CUresult result = in.stream(stream_handle, &stream);
  const GraphExec* const exec = known_exec(handle);
  if (result == CUDA_SUCCESS && exec == nullptr) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = world().captures.refuse_on(*stream);
  if (result != CUDA_SUCCESS) return result;
  replay(exec->steps, *stream, "graph launch");
  in.costs(5000);
  return stream->context->sticky;
}

}  // namespace

SIM_TWINS(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, (CUstream stream),
          begin(in, stream, CU_STREAM_CAPTURE_MODE_GLOBAL))
SIM_TWINS(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
          (CUstream stream, CUstreamCaptureMode mode), begin(in, stream, mode))
SIM_TWINS(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
          (CUstream stream, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData*,
           size_t count, CUstreamCaptureMode mode),
          begin_into(in, stream, graph, after, count, mode))
SIM_TWINS(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz,
          (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback,
           void*),
          begin_again(in, stream, graph, mode))
SIM_TWINS(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream stream, CUgraph* graph),
          end(in, stream, graph))
SIM_TWINS(cuStreamIsCapturing, cuStreamIsCapturing_ptsz,
          (CUstream stream, CUstreamCaptureStatus* status), is_capturing(in, stream, status))
SIM_TWINS(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
          (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id),
          info(in, stream, Info{status, id, nullptr, nullptr, nullptr, nullptr}))
SIM_TWINS(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
          (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
           const CUgraphNode** nodes, size_t* count),
          info(in, stream, Info{status, id, graph, nodes, nullptr, count}))
SIM_TWINS(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
          (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
           const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count),
          info(in, stream, Info{status, id, graph, nodes, edges, count}))
SIM_DEFINE(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), exchange(mode))
SIM_DEFINE(cuGraphCreate, (CUgraph * graph, unsigned int flags), graph_create(in, graph, flags))
SIM_DEFINE(cuGraphDestroy, (CUgraph graph), graph_destroy(graph))
SIM_DEFINE(cuGraphGetNodes, (CUgraph graph, CUgraphNode* nodes, size_t* count),
           graph_nodes(graph, nodes, count))
SIM_DEFINE(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode*, char*, size_t),
           make_ready(in, exec, graph))
SIM_DEFINE(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode*, char*, size_t),
           make_ready(in, exec, graph))
SIM_DEFINE(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long),
           make_ready(in, exec, graph))
SIM_TWINS(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
          (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS*),
          make_ready(in, exec, graph))
SIM_DEFINE(cuGraphExecDestroy, (CUgraphExec exec), exec_destroy(exec))
SIM_TWINS(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream),
          graph_launch(in, exec, stream))
SIM_TWINS(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec exec, CUstream),
          known_exec(exec) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)

}  // namespace cupool::sim
