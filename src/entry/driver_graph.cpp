// SPDX-License-Identifier: Apache-2.0
// Driver hooks of graph nodes that fill memory (contract 6).
#include "engine/serve/graph_nodes.h"

#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"

using cupool::engine::CompletedNode;
using cupool::engine::context_of_fill;

namespace {

cupool::engine::PointerQueries* queries() {
  cupool::engine::Allocator* const allocator = cupool::process::engine();
  return allocator == nullptr ? nullptr : &allocator->queries();
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph,
                                          const CUgraphNode* dependencies, size_t count,
                                          const CUDA_MEMSET_NODE_PARAMS* parameters,
                                          CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuGraphAddMemsetNode);
  return real.cuGraphAddMemsetNode(node, graph, dependencies, count, parameters,
                                   context_of_fill(queries(), context, parameters));
}

CUresult cupool_hook_cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                    const CUDA_MEMSET_NODE_PARAMS* parameters,
                                                    CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuGraphExecMemsetNodeSetParams);
  return real.cuGraphExecMemsetNodeSetParams(executable, node, parameters,
                                             context_of_fill(queries(), context, parameters));
}

CUresult cupool_hook_cuGraphAddNode(CUgraphNode* node, CUgraph graph,
                                    const CUgraphNode* dependencies, size_t count,
                                    void* parameters) {
  CUPOOL_REAL_OR_RETURN(cuGraphAddNode);
  return real.cuGraphAddNode(node, graph, dependencies, count,
                             CompletedNode(queries(), parameters).parameters());
}

CUresult cupool_hook_cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                       const CUgraphNode* dependencies, const void* edges,
                                       size_t count, void* parameters) {
  CUPOOL_REAL_OR_RETURN(cuGraphAddNode_v2);
  return real.cuGraphAddNode_v2(node, graph, dependencies, edges, count,
                                CompletedNode(queries(), parameters).parameters());
}

CUresult cupool_hook_cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                              void* parameters) {
  CUPOOL_REAL_OR_RETURN(cuGraphExecNodeSetParams);
  return real.cuGraphExecNodeSetParams(executable, node,
                                       CompletedNode(queries(), parameters).parameters());
}

}  // extern "C"
