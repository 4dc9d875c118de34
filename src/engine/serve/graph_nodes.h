// SPDX-License-Identifier: Apache-2.0
// The context of graph nodes that fill memory (contract 6). Without a context from the program, the
// driver takes the memory's; pool memory has none, and the driver refuses (measured). cupool's
// blocks replace memory that has one.
#pragma once

#include <cstddef>

#include "engine/serve/pointer_queries.h"

namespace cupool::engine {

/// The context to name for a fill with `parameters` to which the program gave `named`. `queries`
/// null: no engine runs.
CUcontext context_of_fill(PointerQueries* queries, CUcontext named,
                          const CUDA_MEMSET_NODE_PARAMS* parameters);

/// The parameters of a node of any type as the program gave them, or a copy of a fill's with the
/// context filled in. Must outlive the driver's call.
class CompletedNode {
 public:
  /// `given`: a CUgraphNodeParams, or null. `queries` null: no engine runs.
  CompletedNode(PointerQueries* queries, void* given);
  CompletedNode(const CompletedNode&) = delete;
  CompletedNode& operator=(const CompletedNode&) = delete;

  void* parameters() { return parameters_; }

 private:
  /// CUgraphNodeParams of a memset node (cuda.h, from CUDA 12.2 on; the whole has 256 bytes).
  struct Fill {
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
  static_assert(sizeof(Fill) == 256, "as the driver's");
#if CUDA_VERSION >= 12020
  static_assert(sizeof(CUgraphNodeParams) == sizeof(Fill), "as the driver's");
  static_assert(offsetof(CUgraphNodeParams, memset.ctx) == offsetof(Fill, context),
                "as the driver's");
#endif

  void* parameters_;
  Fill copy_;
};

}  // namespace cupool::engine
