// SPDX-License-Identifier: Apache-2.0
// Beginning and end of the simulated driver: fork, exit and the call counts' file.
#include "driver/lifecycle.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "driver/calls.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

enum class Phase { fresh, no_device, ready, torn_down, forked };

std::atomic<Phase> phase{Phase::fresh};

void tear_down() {
  Phase expected = Phase::ready;  // a forked child stays what it is
  phase.compare_exchange_strong(expected, Phase::torn_down);
}

// A child of an initialised process cannot use the driver; nothing may hang in it.
void in_child() {
  forget_calls();
  if (phase.load() != Phase::fresh) phase.store(Phase::forked);
}

// Runs after all exit handlers: calls that arrive after the teardown are counted too.
__attribute__((destructor)) void at_unload() {
  if (phase.load() == Phase::forked || !any_call()) return;
  const Settings& settings = world().settings;
  if (!settings.calls_file.empty()) write_calls(settings.calls_file);
}

}  // namespace

CUresult alive() {
  switch (phase.load()) {
    case Phase::ready:
      return CUDA_SUCCESS;
    case Phase::torn_down:
      return CUDA_ERROR_DEINITIALIZED;
    default:
      return CUDA_ERROR_NOT_INITIALIZED;
  }
}

CUresult initialise(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (phase.load()) {
    case Phase::forked:
      return CUDA_ERROR_NOT_INITIALIZED;
    case Phase::torn_down:
      return CUDA_ERROR_DEINITIALIZED;
    case Phase::ready:
      return CUDA_SUCCESS;
    default:
      break;
  }
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (phase.load() == Phase::ready) return CUDA_SUCCESS;
  if (w.settings.devices == 0) {
    phase.store(Phase::no_device);
    return CUDA_ERROR_NO_DEVICE;
  }
  for (int i = 0; i < w.settings.devices; ++i) {
    const std::vector<size_t>& sizes = w.settings.memory_bytes;
    const size_t memory = sizes[std::min(static_cast<size_t>(i), sizes.size() - 1)];
    w.devices.push_back(std::make_unique<Device>(i, memory, w.settings.shared_file));
    Device& device = *w.devices.back();
    auto context = std::make_unique<Context>();
    context->device = &device;
    context->primary = true;
    context->id = ++w.last_id;
    device.primary = context.get();
    w.contexts.push_back(std::move(context));
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, i};
    device.default_pool = new Pool(device, props);
    device.current_pool = device.default_pool;
    device.graph_pool = new Pool(device, props);
    w.pools.insert(device.default_pool);
    w.pools.insert(device.graph_pool);
  }
  pthread_atfork(nullptr, nullptr, in_child);
  std::atexit(tear_down);
  phase.store(Phase::ready);
  return CUDA_SUCCESS;
}

void fail_for_good(CUresult code) {
  if (code == CUDA_ERROR_DEINITIALIZED) return tear_down();
  World& w = world();
  const std::lock_guard<std::mutex> lock(w.mutex);
  for (const auto& context : w.contexts) {
    context->sticky = code;
    w.engine.cancel(*context);
  }
}

}  // namespace cupool::sim
