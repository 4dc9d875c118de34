// SPDX-License-Identifier: Apache-2.0
// References and handles of primary contexts, and what the driver says of them.
#include "engine/context/primary_contexts.h"

#include <new>

#include "util/mutation.h"

namespace cupool::engine {

// Not on the heap: asked also where that is exhausted.
PrimaryContexts& PrimaryContexts::of_process() {
  alignas(PrimaryContexts) static unsigned char place[sizeof(PrimaryContexts)];
  static auto* const all = new (place) PrimaryContexts;  // never destroyed
  return *all;
}

void PrimaryContexts::retained(CUdevice device, CUcontext context) {
  Uses& uses = uses_of(device);
  ++uses.references;
  if (has_slot(device)) uses.handle.store(context);
}

void PrimaryContexts::released(CUdevice device) {
  Uses& uses = uses_of(device);
  if (uses.references != 0) --uses.references;
}

bool PrimaryContexts::at_last_reference(CUdevice device) {
  return uses_of(device).references <= 1;
}

std::optional<bool> PrimaryContexts::state(const cuda::Driver& driver, CUdevice device) {
  unsigned int flags = 0;
  int active = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS) {
      return active != 0;
    }
  }
  return std::nullopt;
}

bool PrimaryContexts::is_active(const cuda::Driver& driver, CUdevice device) {
  return state(driver, device).value_or(false);
}

CUcontext PrimaryContexts::known(CUdevice device) {
  return uses_of(device).handle.load();
}

CUcontext PrimaryContexts::active(const cuda::Driver& driver, CUdevice device) {
  if (CUPOOL_MUTATED("locks-twice")) {
    util::LockOrder::begin_anew();  // which would notice before anybody waits
    lock(device).unlock();
  }
  const std::optional<bool> is_known_active = state(driver, device);
  if (is_known_active == false) return nullptr;
  CUcontext context = known(device);
  // Where the driver does not say, the one that was used so far may be about to end.
  if (context != nullptr || !is_known_active) return context;
  if (driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  driver.cuDevicePrimaryCtxRelease_v2 != nullptr ? driver.cuDevicePrimaryCtxRelease_v2(device)
                                                 : driver.cuDevicePrimaryCtxRelease(device);
  return context;
}

}  // namespace cupool::engine
