// SPDX-License-Identifier: Apache-2.0
// Ends serving, and leaves no idle memory behind.
#include "engine/serve/step_aside.h"

#include "cuda/errors.h"
#include "engine/reclaim/lane.h"
#include "engine/serve/failure.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

namespace {

// Longest wait in each context, within the program's call that makes the engine step aside. The
// frees together would have waited as long. Memory that needs longer goes back later.
constexpr std::uint64_t kLongestWaitToStepAsideNs = 1'000'000'000;

}  // namespace

// A first round while the engine still serves, since its fences cover all work then. A second round
// for memory that other threads have cached meanwhile, once no thread caches any more.
void StepAside::stop_serving(const char* reason) {
  if (Serving::stepped_aside() || CUPOOL_MUTATED("never-steps-aside")) return;
  Lane::leave(Lane::End::unknown_work);
  bool first = true;
  for (const bool again : {false, true}) {
    for (Device* device : registry_.devices().all()) {
      for (Context* context : registry_.contexts_of(device->ordinal())) {
        give_back(*context);
      }
    }
    const bool waits = !again && policy_.mode() != config::FreeMode::ordered;
    Patience patience(waits ? kLongestWaitToStepAsideNs : 0);
    host_.give_back(patience);
    if (!again) first = Serving::step_aside();
  }
  default_pools_.leave_all();
  if (first) CUPOOL_LOG(warn, "%s: the driver serves its memory from now on", reason);
}

void StepAside::give_back(Context& context) {
  const ContextVisit visit(context, kLongestWaitForOthersNs);
  if (!visit || !context.usable() || CUPOOL_MUTATED("steps-aside-with-its-memory")) return;
  if (context.device().pools() != nullptr) context.device().pools()->preallocation().end(context);
  context.threads().drain(Drain::all);
  idle_.retire_cached(context);
  Ordering& ordering = context.ordering();
  const bool waits = policy_.mode() != config::FreeMode::ordered && !Serving::stepped_aside();
  CUresult error = CUDA_SUCCESS;
  if (waits) error = ordering.wait(ordering.newest(), kLongestWaitToStepAsideNs).error;
  if (error == CUDA_SUCCESS) {
    BlockList reclaimed;
    error = ordering.poll(Ordering::Poll::all, &reclaimed);
    if (!reclaimed.empty()) idle_.cache_or_release(context, reclaimed);
  }
  if (error != CUDA_SUCCESS) note_failure(context, error);
  if (context.usable() && !cuda::shut_down()) out_of_memory_.give_back_cached(context);
}

}  // namespace cupool::engine
