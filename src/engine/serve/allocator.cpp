// SPDX-License-Identifier: Apache-2.0
// Construction of the allocator: each part gets the parts that it calls.
#include "engine/serve/allocator.h"

#include "engine/reclaim/lane.h"
#include "engine/reclaim/serving.h"

namespace cupool::engine {

Allocator::Allocator(const cuda::Driver& driver, const config::Settings& settings)
    : settings_(settings),
      registry_(driver, settings_),
      streams_(driver, registry_),
      imports_(driver),
      policy_(settings.free_mode),
      idle_(settings_, registry_, blocks_, exports_, policy_),
      host_(driver, settings_, registry_, policy_, idle_),
      async_(driver, settings_, registry_, policy_, idle_),
      out_of_memory_(driver, registry_, idle_, async_),
      preparation_(registry_, idle_.give_backs()),
      default_pools_(registry_, policy_, preparation_, idle_.give_backs(), async_),
      peak_(registry_),
      allocations_(registry_, blocks_, idle_, out_of_memory_, preparation_, peak_),
      frees_(driver, registry_, blocks_, policy_, idle_),
      pass_through_(driver, registry_, blocks_, imports_, policy_, idle_, out_of_memory_,
                    default_pools_, async_),
      synchronization_(registry_, idle_, policy_),
      queries_(driver, registry_, blocks_, imports_, host_.blocks(), async_),
      sharing_(driver, registry_, blocks_, exports_, imports_, out_of_memory_),
      endings_(driver, registry_, blocks_, exports_, imports_, policy_, host_, async_,
               out_of_memory_, PrimaryContexts::of_process()),
      step_aside_(registry_, policy_, idle_, out_of_memory_, default_pools_, host_),
      figures_(registry_, blocks_, exports_, host_, async_) {
  Serving::start();
  // Without events of a context nothing proves a cached block unused.
  if (!settings_.lane || settings_.free_mode == config::FreeMode::sync ||
      driver.cuCtxRecordEvent == nullptr) {
    Lane::leave(Lane::End::off);
  }
  idle_.look_for_libraries();
}

}  // namespace cupool::engine
