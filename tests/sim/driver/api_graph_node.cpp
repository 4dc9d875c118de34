// SPDX-License-Identifier: Apache-2.0
// Exported: graph nodes that a call adds, and changes of executable ones. Of all kinds memset
// nodes.
//
// Measured (driver 580): without a context a node has that of the memory, which memory of pools has
// none of, and then it is refused; a change of an executable node takes the current one there, and
// is refused if that is not the node's.
#include "driver/copy.h"
#include "driver/graph.h"

namespace cupool::sim {

namespace {

Context* context_of_memory(CUdeviceptr address) {
  const Allocation* const found = world().addresses.find(address);
  return found == nullptr ? nullptr : found->context;
}

CUresult describe(const CUDA_MEMSET_NODE_PARAMS& p, OpSpec* spec) {
  if (p.width == 0 || p.height == 0 || p.elementSize == 0) return CUDA_ERROR_INVALID_VALUE;
  return describe_fill(p.dst, p.pitch, p.value, p.elementSize, p.width, p.height, spec);
}

CUresult add(CUgraphNode* handle, CUgraph graph_handle, const CUgraphNode* after, size_t count,
             const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  auto* const graph = reinterpret_cast<Graph*>(graph_handle);
  if (handle == nullptr || graph == nullptr || !world().graphs.known(graph) ||
      parameters == nullptr || (count != 0 && after == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<GraphNode*> before;
  for (size_t i = 0; i < count; ++i) {
    GraphNode* const node = graph->node(after[i]);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    before.push_back(node);
  }
  Context* where =
      context != nullptr ? world().known_context(context) : context_of_memory(parameters->dst);
  OpSpec spec;
  const CUresult result =
      where == nullptr ? CUDA_ERROR_INVALID_VALUE : describe(*parameters, &spec);
  if (result != CUDA_SUCCESS) return result;
  GraphNode& node = graph->add(CU_GRAPH_NODE_TYPE_MEMSET, std::move(spec), std::move(before));
  node.context = where;
  *handle = node.handle();
  return CUDA_SUCCESS;
}

CUresult change(Entry& in, CUgraphExec handle, CUgraphNode node,
                const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  auto* const exec = reinterpret_cast<GraphExec*>(handle);
  if (handle == nullptr || !world().graphs.known(exec) || parameters == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* where =
      context != nullptr ? world().known_context(context) : context_of_memory(parameters->dst);
  if (where == nullptr && in.current(&where) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  for (GraphExec::Step& step : exec->steps) {
    if (step.node == nullptr || step.node != reinterpret_cast<const GraphNode*>(node)) continue;
    OpSpec spec;
    const CUresult result =
        step.context != where ? CUDA_ERROR_INVALID_VALUE : describe(*parameters, &spec);
    if (result == CUDA_SUCCESS) step.spec = std::move(spec);
    return result;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// The newer form, as the older one.
CUDA_MEMSET_NODE_PARAMS memset_of(const CUgraphNodeParams& parameters) {
  const CUDA_MEMSET_NODE_PARAMS_v2& p = parameters.memset;
  return {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height};
}

CUresult add_any(CUgraphNode* handle, CUgraph graph, const CUgraphNode* after, size_t count,
                 const CUgraphNodeParams* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->type != CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_NOT_SUPPORTED;
  const CUDA_MEMSET_NODE_PARAMS memset = memset_of(*parameters);
  return add(handle, graph, after, count, &memset, parameters->memset.ctx);
}

CUresult change_any(Entry& in, CUgraphExec exec, CUgraphNode node,
                    const CUgraphNodeParams* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->type != CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_NOT_SUPPORTED;
  const CUDA_MEMSET_NODE_PARAMS memset = memset_of(*parameters);
  return change(in, exec, node, &memset, parameters->memset.ctx);
}

}  // namespace

SIM_DEFINE(cuGraphAddMemsetNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* after, size_t count,
            const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context),
           add(node, graph, after, count, parameters, context))
SIM_DEFINE(cuGraphAddNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* after, size_t count,
            CUgraphNodeParams* parameters),
           add_any(node, graph, after, count, parameters))
SIM_DEFINE(cuGraphAddNode_v2,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData*,
            size_t count, CUgraphNodeParams* parameters),
           add_any(node, graph, after, count, parameters))
SIM_DEFINE(cuGraphExecMemsetNodeSetParams,
           (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters,
            CUcontext context),
           change(in, exec, node, parameters, context))
SIM_DEFINE(cuGraphExecNodeSetParams,
           (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* parameters),
           change_any(in, exec, node, parameters))

}  // namespace cupool::sim
