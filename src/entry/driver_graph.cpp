// SPDX-License-Identifier: Apache-2.0
// Driver hooks of graph nodes that fill memory. Without a context from the program, the driver
// takes the memory's; pool memory has none, and the driver refuses (measured). cupool's blocks
// replace memory that has one.
#include <cstddef>
#include <cstring>
#include <optional>

#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"

using cupool::engine::Allocator;
using cupool::engine::Block;
using cupool::engine::BlockSource;

namespace {

// The context that the driver would have found: of a live pool block, or of one exported by another
// process. Else null, and the driver looks for itself.
CUcontext context_of_memory(CUdeviceptr address) {
  Allocator* const allocator = cupool::process::engine();
  if (allocator == nullptr) return nullptr;
  const CUdeviceptr base = allocator->queries().base_of(address);
  if (const Block* const block = allocator->queries().live_block(base)) {
    return block->source == BlockSource::pool ? block->context->handle() : nullptr;
  }
  const auto imported = allocator->sharing().imports().find(base);
  return imported ? imported->context : nullptr;
}

CUcontext context_of_node(CUcontext named, const CUDA_MEMSET_NODE_PARAMS* parameters) {
  return named != nullptr || parameters == nullptr ? named : context_of_memory(parameters->dst);
}

// CUgraphNodeParams of a memset node (cuda.h, from CUDA 12.2 on; the whole has 256 bytes).
struct NodeParameters {
  int type;
  int reserved[3];
  CUdeviceptr to;
  std::size_t pitch;
  unsigned int value;
  unsigned int element_bytes;
  std::size_t width;
  std::size_t height;
  CUcontext context;
  char rest[256 - 16 - 48];
};
static_assert(sizeof(NodeParameters) == 256, "as the driver's");
#if CUDA_VERSION >= 12020
static_assert(sizeof(CUgraphNodeParams) == sizeof(NodeParameters), "as the driver's");
static_assert(offsetof(CUgraphNodeParams, memset.ctx) == offsetof(NodeParameters, context),
              "as the driver's");
#endif

/// The program's parameters, or a copy with the context filled in.
class Completed {
 public:
  explicit Completed(void* given) : parameters_(given) {
    int type = 0;
    if (given == nullptr) return;
    std::memcpy(&type, given, sizeof type);
    if (type != CU_GRAPH_NODE_TYPE_MEMSET) return;
    std::memcpy(&copy_, given, sizeof copy_);
    if (copy_.context != nullptr) return;
    copy_.context = context_of_memory(copy_.to);
    if (copy_.context != nullptr) parameters_ = &copy_;
  }
  void* parameters() { return parameters_; }

 private:
  void* parameters_;
  NodeParameters copy_;
};

}  // namespace

extern "C" {

CUresult cupool_hook_cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph,
                                          const CUgraphNode* dependencies, size_t count,
                                          const CUDA_MEMSET_NODE_PARAMS* parameters,
                                          CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuGraphAddMemsetNode);
  return real.cuGraphAddMemsetNode(node, graph, dependencies, count, parameters,
                                   context_of_node(context, parameters));
}

CUresult cupool_hook_cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                    const CUDA_MEMSET_NODE_PARAMS* parameters,
                                                    CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuGraphExecMemsetNodeSetParams);
  return real.cuGraphExecMemsetNodeSetParams(executable, node, parameters,
                                             context_of_node(context, parameters));
}

CUresult cupool_hook_cuGraphAddNode(CUgraphNode* node, CUgraph graph,
                                    const CUgraphNode* dependencies, size_t count,
                                    void* parameters) {
  CUPOOL_REAL_OR_RETURN(cuGraphAddNode);
  return real.cuGraphAddNode(node, graph, dependencies, count, Completed(parameters).parameters());
}

CUresult cupool_hook_cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                       const CUgraphNode* dependencies, const void* edges,
                                       size_t count, void* parameters) {
  CUPOOL_REAL_OR_RETURN(cuGraphAddNode_v2);
  return real.cuGraphAddNode_v2(node, graph, dependencies, edges, count,
                                Completed(parameters).parameters());
}

CUresult cupool_hook_cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                              void* parameters) {
  CUPOOL_REAL_OR_RETURN(cuGraphExecNodeSetParams);
  return real.cuGraphExecNodeSetParams(executable, node, Completed(parameters).parameters());
}

}  // extern "C"
