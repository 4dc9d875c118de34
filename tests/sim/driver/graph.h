// SPDX-License-Identifier: Apache-2.0
// Graphs: recorded operations with their dependencies, made by captures and replayed by launches.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "driver/op.h"

namespace cupool::sim {

struct Context;
struct Graph;
struct Stream;

struct GraphNode {
  Graph* graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  OpSpec spec;
  std::vector<GraphNode*> after;
  Context* context = nullptr;  ///< of a node that was added by a call

  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
};

/// Memory that was allocated while capturing: it has one address for as long as the graph or one
/// of its executable forms exists.
struct GraphMemory {
  struct Place {
    uintptr_t address;
    unsigned long long id;  ///< of the allocation: the address may be another's by the end
  };
  std::vector<Place> blocks;
  ~GraphMemory();
};

struct Graph {
  Context* context = nullptr;
  std::shared_ptr<GraphMemory> allocated = std::make_shared<GraphMemory>();
  std::vector<std::unique_ptr<GraphNode>> nodes;  ///< a topological order

  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
  /// Null when the handle names no node of this graph.
  GraphNode* node(CUgraphNode handle) const;
  GraphNode& add(CUgraphNodeType type, OpSpec spec, std::vector<GraphNode*> after);
};

/// A graph made ready: it holds device memory of its own until it is destroyed, as real ones do.
struct GraphExec {
  struct Step {
    OpSpec spec;
    std::vector<size_t> after;
    const GraphNode* node = nullptr;
    Context* context = nullptr;
  };
  Context* context = nullptr;
  std::vector<Step> steps;
  std::shared_ptr<GraphMemory> allocated;
  uintptr_t memory = 0;
};

std::unique_ptr<GraphExec> instantiate(const Graph& graph);
/// Submits the steps between two markers, so that the stream's order is that of all of them.
void replay(const std::vector<GraphExec::Step>& steps, Stream& stream, const char* name);

}  // namespace cupool::sim
