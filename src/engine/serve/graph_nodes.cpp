// SPDX-License-Identifier: Apache-2.0
// Only fills need a context, and only those that the program has given none.
#include "engine/serve/graph_nodes.h"

#include <cstring>

namespace cupool::engine {

CUcontext context_of_fill(PointerQueries* queries, CUcontext named,
                          const CUDA_MEMSET_NODE_PARAMS* parameters) {
  if (named != nullptr || parameters == nullptr || queries == nullptr) return named;
  return queries->context_of_pool_memory(parameters->dst);
}

CompletedNode::CompletedNode(PointerQueries* queries, void* given) : parameters_(given) {
  int type = 0;
  if (given == nullptr || queries == nullptr) return;
  std::memcpy(&type, given, sizeof type);
  if (type != CU_GRAPH_NODE_TYPE_MEMSET) return;
  std::memcpy(&copy_, given, sizeof copy_);
  if (copy_.context != nullptr) return;
  copy_.context = queries->context_of_pool_memory(copy_.to);
  if (copy_.context != nullptr) parameters_ = &copy_;
}

}  // namespace cupool::engine
