// SPDX-License-Identifier: Apache-2.0
// Creation of the world, and look-ups that span its parts.
#include "driver/world.h"

#include <cstdio>
#include <cstdlib>

#include "driver/calls.h"

namespace cupool::sim {

World::World() : settings(read_settings()), engine(settings, mutex), judge(settings, engine) {
  if (!set_faults(settings.fail.c_str())) {
    std::fprintf(stderr, "cupool sim: cannot understand CUPOOL_SIM_FAIL=%s\n",
                 settings.fail.c_str());
    std::abort();
  }
}

World& world() {
  static World* const instance = new World;
  return *instance;
}

Device* World::device_at(uintptr_t address) {
  for (auto& device : devices) {
    if (device->arena.contains(address)) return device.get();
  }
  return nullptr;
}

NamedContext World::named_context(CUcontext handle) {
  for (auto& context : contexts) {
    if (context->handle() == handle) return {context.get(), nullptr};
  }
  for (auto& green : greens) {
    if (green->context_handle() == handle) return {green->primary, green.get()};
  }
  return {};
}

void World::after_host_sync(Device& device) {
  const std::vector<Pool*> all(pools.begin(), pools.end());  // a destroyed one may go now
  for (Pool* pool : all) {
    if (&pool->device() != &device) continue;
    pool->settle();
    pool->trim_to_threshold();
    collect(pool);
  }
}

void World::reclaim(Device& device) {
  for (Pool* pool : pools) {
    if (&pool->device() != &device) continue;
    pool->settle();
    pool->trim(0);
  }
}

void World::collect(Pool* pool) {
  if (!pool->destroyed || pool->live_blocks() != 0) return;
  // Frees whose stream work is pending are waited for by nobody: the segments stay until then.
  pool->settle();
  pool->trim(0);
  cuuint64_t reserved = 0;
  pool->get_attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
  if (reserved != 0) return;
  pools.erase(pool);
  delete pool;
}

Graph& Graphs::create(Context& context) {
  auto* const graph = new Graph;
  graph->context = &context;
  graphs_.insert(graph);
  return *graph;
}

void Graphs::destroy(Graph* graph) {
  graphs_.erase(graph);
  delete graph;
}

GraphExec* Graphs::add(std::unique_ptr<GraphExec> exec) {
  execs_.insert(exec.get());
  return exec.release();
}

void Graphs::destroy(GraphExec* exec) {
  execs_.erase(exec);
  delete exec;
}

}  // namespace cupool::sim
