// SPDX-License-Identifier: Apache-2.0
// Nodes that fill memory of cudaMalloc, added to a graph and changed in an executable one, with the
// context named and left to the driver, while the memory's context is current and while another is.
#include <cuda.h>

#include <functional>
#include <vector>

#include "probe.h"
#include "sim_control.h"

namespace {

constexpr size_t kWords = 16;

CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr to, unsigned value) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = to;
  fill.value = value;
  fill.elementSize = 4;
  fill.width = kWords;
  fill.height = 1;
  return fill;
}

CUgraphNodeParams node_of(CUdeviceptr to, unsigned value, CUcontext context) {
  CUgraphNodeParams node{};
  node.type = CU_GRAPH_NODE_TYPE_MEMSET;
  node.memset.dst = to;
  node.memset.value = value;
  node.memset.elementSize = 4;
  node.memset.width = kWords;
  node.memset.height = 1;
  node.memset.ctx = context;
  return node;
}

unsigned first_word(CUdeviceptr at) {
  unsigned word = 0;
  MUST(cuMemcpyDtoH(&word, at, sizeof word));
  return word;
}

using AddNode = CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUgraphNodeParams*);

// A graph of one node, made and launched with `current` current.
void add(const char* what, CUcontext home, CUcontext current, CUdeviceptr to,
         const std::function<CUresult(CUgraph, CUgraphNode*)>& call) {
  MUST(cuCtxSetCurrent(current));
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  const CUresult result = call(graph, &node);
  unsigned word = 0;
  if (result == CUDA_SUCCESS) {
    MUST(cuCtxSetCurrent(home));
    CUgraphExec executable = nullptr;
    MUST(cuGraphInstantiate(&executable, graph, 0));
    MUST(cuGraphLaunch(executable, nullptr));
    MUST(cuCtxSynchronize());
    word = first_word(to);
    MUST(cuGraphExecDestroy(executable));
  }
  std::printf("  %s: %d, word %x\n", what, static_cast<int>(result), word);
  MUST(cuGraphDestroy(graph));
}

void change(const char* what, CUcontext home, CUcontext current, CUdeviceptr from, CUdeviceptr to,
            const std::function<CUresult(CUgraphExec, CUgraphNode)>& call) {
  MUST(cuCtxSetCurrent(home));
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  const CUDA_MEMSET_NODE_PARAMS before = fill_of(from, 1);
  MUST(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &before, home));
  MUST(cuGraphInstantiate(&executable, graph, 0));
  MUST(cuCtxSetCurrent(current));
  const CUresult result = call(executable, node);
  MUST(cuCtxSetCurrent(home));
  MUST(cuGraphLaunch(executable, nullptr));
  MUST(cuCtxSynchronize());
  std::printf("  %s: %d, words %x, %x\n", what, static_cast<int>(result), first_word(from),
              first_word(to));
  MUST(cuGraphExecDestroy(executable));
  MUST(cuGraphDestroy(graph));
}

void all(CUcontext home, CUcontext current, CUcontext named, size_t bytes) {
  MUST(cuCtxSetCurrent(home));
  CUdeviceptr block = 0;
  CUdeviceptr other = 0;
  MUST(cuMemAlloc(&block, bytes));
  MUST(cuMemAlloc(&other, bytes));
  MUST(cuMemsetD32(block, 0, bytes / 4));
  MUST(cuMemsetD32(other, 0, bytes / 4));
  for (const CUdeviceptr to : {block, block + bytes / 2}) {
    add("cuGraphAddMemsetNode", home, current, to, [&](CUgraph graph, CUgraphNode* node) {
      const CUDA_MEMSET_NODE_PARAMS fill = fill_of(to, 0x11);
      return cuGraphAddMemsetNode(node, graph, nullptr, 0, &fill, named);
    });
    CUgraphNodeParams given = node_of(to, 0x22, named);
    add("cuGraphAddNode_v2", home, current, to, [&](CUgraph graph, CUgraphNode* node) {
      return cuGraphAddNode(node, graph, nullptr, nullptr, 0, &given);
    });
    given.memset.value = 0x33;
    add("cuGraphAddNode", home, current, to, [&](CUgraph graph, CUgraphNode* node) {
      return probe::sim_control<AddNode>("cuGraphAddNode")(node, graph, nullptr, 0, &given);
    });
    // The program's own parameters stay as they are.
    CHECK(given.memset.ctx == named && given.memset.dst == to);
    change("cuGraphExecMemsetNodeSetParams", home, current, other, to,
           [&](CUgraphExec executable, CUgraphNode node) {
             const CUDA_MEMSET_NODE_PARAMS fill = fill_of(to, 0x44);
             return cuGraphExecMemsetNodeSetParams(executable, node, &fill, named);
           });
    given.memset.value = 0x55;
    change("cuGraphExecNodeSetParams", home, current, other, to,
           [&](CUgraphExec executable, CUgraphNode node) {
             return cuGraphExecNodeSetParams(executable, node, &given);
           });
  }
  MUST(cuMemFree(other));
  MUST(cuMemFree(block));
}

}  // namespace

int main() {
  CUcontext primary = nullptr;
  CUcontext created = nullptr;
  CUctxCreateParams parameters{};
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxCreate(&created, &parameters, 0, 0));
  for (const CUcontext home : {primary, created}) {
    for (const CUcontext current : {primary, created}) {
      for (const bool named : {false, true}) {
        for (const size_t bytes : {size_t{4096}, size_t{8} << 20}) {
          std::printf("memory of %s, current %s, context %s, %zu bytes\n",
                      home == primary ? "primary" : "created",
                      current == primary ? "primary" : "created", named ? "named" : "not named",
                      bytes);
          all(home, current, named ? home : nullptr, bytes);
        }
      }
    }
  }
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  std::printf("no parameters: %d, %d\n",
              static_cast<int>(cuGraphAddMemsetNode(&node, graph, nullptr, 0, nullptr, nullptr)),
              static_cast<int>(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, nullptr)));
  return 0;
}
