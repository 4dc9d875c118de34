// SPDX-License-Identifier: Apache-2.0
// Replays recorded operations between two markers in the stream, so that whatever is ordered after
// the launch is ordered after all of them. Batches of copies go the same way.
#include "driver/graph.h"

#include <unordered_map>

#include "driver/context.h"
#include "driver/entry.h"
#include "driver/judge.h"
#include "driver/world.h"

namespace cupool::sim {

GraphNode& Graph::add(CUgraphNodeType type, OpSpec spec, std::vector<GraphNode*> after) {
  auto node = std::make_unique<GraphNode>();
  node->graph = this;
  node->type = type;
  node->spec = std::move(spec);
  node->after = std::move(after);
  nodes.push_back(std::move(node));
  return *nodes.back();
}

GraphNode* Graph::node(CUgraphNode handle) const {
  for (const auto& node : nodes) {
    if (node->handle() == handle) return node.get();
  }
  return nullptr;
}

GraphMemory::~GraphMemory() {
  AddressMap& addresses = world().addresses;
  for (const Place& block : blocks) {
    const Allocation* found = addresses.starting_at(block.address);
    if (found == nullptr || found->id != block.id) continue;  // the program freed it itself
    found->pool->release(block.address, found->size, nullptr);
    addresses.erase(block.address);
  }
}

std::unique_ptr<GraphExec> instantiate(const Graph& graph) {
  auto exec = std::make_unique<GraphExec>();
  exec->context = graph.context;
  exec->allocated = graph.allocated;
  std::unordered_map<const GraphNode*, size_t> index;
  for (const auto& node : graph.nodes) {
    GraphExec::Step step;
    step.spec = node->spec;
    step.node = node.get();
    step.context = node->context;
    for (const GraphNode* earlier : node->after) step.after.push_back(index.at(earlier));
    index.emplace(node.get(), exec->steps.size());
    exec->steps.push_back(std::move(step));
  }
  return exec;
}

void replay(const std::vector<GraphExec::Step>& steps, Stream& stream, const char* name) {
  World& w = world();
  stream.overlap = {};
  OpSpec marker;
  marker.name = name;
  const OpRef start = submit(stream, marker);
  std::vector<OpRef> ops;
  for (const GraphExec::Step& step : steps) {
    std::vector<OpRef> before{start};
    Clock clock = start->clock;
    for (const size_t i : step.after) {
      before.push_back(ops[i]);
      join(clock, ops[i]->clock);
    }
    const Instant at{stream.timeline, ++stream.number};
    w.judge.before_submit(step.spec, clock, at);
    ops.push_back(w.engine.submit(*stream.context, step.spec, before, std::move(clock), at));
  }
  submit(stream, marker, ops);
  returns_late();
}

}  // namespace cupool::sim
