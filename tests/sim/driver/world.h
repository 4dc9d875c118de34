// SPDX-License-Identifier: Apache-2.0
// The whole simulated machine behind one lock: simple, and provable. It is created on first use
// and never destroyed, because calls arrive until the very end of the process.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "driver/addresses.h"
#include "driver/array.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/engine.h"
#include "driver/graph.h"
#include "driver/green.h"
#include "driver/judge.h"
#include "driver/modules.h"
#include "driver/pool.h"
#include "driver/settings.h"
#include "driver/vmm.h"

namespace cupool::sim {

class Graphs {
 public:
  Graph& create(Context& context);
  void destroy(Graph* graph);
  bool known(const Graph* graph) const { return graphs_.count(const_cast<Graph*>(graph)) != 0; }
  bool known(const GraphExec* exec) const {
    return execs_.count(const_cast<GraphExec*>(exec)) != 0;
  }
  GraphExec* add(std::unique_ptr<GraphExec> exec);
  void destroy(GraphExec* exec);

 private:
  std::unordered_set<Graph*> graphs_;
  std::unordered_set<GraphExec*> execs_;
};

/// A block of another process: its process, device and offset.
using ImportKey = std::tuple<int, int, uint64_t>;

struct World {
  World();

  std::mutex mutex;
  Settings settings;
  Engine engine;
  Referee judge;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Context>> contexts;  ///< destroyed ones too: their handles are known
  /// In this order. The handle of one that was destroyed long ago comes again.
  std::deque<Context*> destroyed_contexts;
  std::vector<std::unique_ptr<GreenContext>> greens;  ///< destroyed ones too
  std::unordered_set<Stream*> streams;
  std::unordered_set<Stream*> destroyed_streams;
  std::unordered_set<Event*> events;
  std::set<Pool*> pools;
  AddressMap addresses;
  Captures captures;
  Graphs graphs;
  Modules modules;
  VirtualMemory vmm;
  std::unordered_set<Array*> arrays;
  std::map<ImportKey, uintptr_t> imports;  ///< to the address here
  unsigned long long last_id = 0;

  Device* device_at(uintptr_t address);
  NamedContext named_context(CUcontext handle);
  /// The same, whether it is named as a green one or not.
  Context* known_context(CUcontext handle) { return named_context(handle).context; }

  /// The host has waited for something on this device: pools give back what exceeds thresholds.
  void after_host_sync(Device& device);
  /// Idle memory of pools, however high their thresholds, goes back to the device: what driver 580
  /// does before it reports out of memory (measured; older drivers may not, hence a setting).
  void reclaim(Device& device);
  /// A destroyed pool goes when its last block has been freed.
  void collect(Pool* pool);
};

World& world();

}  // namespace cupool::sim
