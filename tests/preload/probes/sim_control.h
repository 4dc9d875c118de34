// SPDX-License-Identifier: Apache-2.0
// The simulated device's controls for a probe, looked up while it runs: on a real driver, which has
// none, nothing happens.
#pragma once

#include <dlfcn.h>

namespace probe {

template <typename Function>
Function sim_control(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  return driver == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(driver, name));
}

// Replaces the rules of injected faults (syntax of CUPOOL_SIM_FAIL; "" ends them).
inline void inject(const char* rules) {
  static const auto fail = sim_control<void (*)(const char*)>("cupoolSimFail");
  if (fail != nullptr) fail(rules);
}

}  // namespace probe
