// SPDX-License-Identifier: Apache-2.0
// Stepping aside: cupool can no longer know how the program uses its memory, so the driver serves
// everything from then on.
#pragma once

#include "engine/context/context_registry.h"
#include "engine/reclaim/serving.h"
#include "engine/serve/default_pools.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/host_memory.h"
#include "engine/serve/idle_memory.h"
#include "engine/serve/out_of_memory.h"

namespace cupool::engine {

/// Thread-safe.
class StepAside {
 public:
  StepAside(ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle,
            OutOfMemory& out_of_memory, DefaultPools& default_pools, HostMemory& host)
      : registry_(registry),
        policy_(policy),
        idle_(idle),
        out_of_memory_(out_of_memory),
        default_pools_(default_pools),
        host_(host) {}

  /// Makes every later allocation pass through, and warns with `reason`. Called before the program
  /// uses its memory in the way that cupool cannot see. Blocks freed so far go back to the device,
  /// after a wait of at most a second in each context (`ordered`: none). Blocks freed later go back
  /// after the driver's own free has waited for the GPU.
  void stop_serving(const char* reason);
  static bool serves() { return !Serving::stepped_aside(); }

 private:
  void give_back(Context& context);

  ContextRegistry& registry_;
  FreePolicy& policy_;
  IdleMemory& idle_;
  OutOfMemory& out_of_memory_;
  DefaultPools& default_pools_;
  HostMemory& host_;
};

}  // namespace cupool::engine
