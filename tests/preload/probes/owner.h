// SPDX-License-Identifier: Apache-2.0
// Tells the simulated device's judge who owns a block from when to when, so that it stops a program
// whose new owner's access is not ordered after the old one's (docs/design.md, Simulated device),
// whether or not the accesses really collided. On a real driver, which has no judge, nothing
// happens.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace probe {

using SetOwner = void (*)(const void*, size_t, unsigned long long);

inline SetOwner judge() {
  // Looked up after the first allocation, when whatever driver there is has been loaded.
  static const SetOwner function = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    return driver == nullptr ? nullptr
                             : reinterpret_cast<SetOwner>(dlsym(driver, "cupoolSimOwner"));
  }();
  return function;
}

// To be called after the allocation has returned.
inline void own(const void* block, size_t bytes) {
  static std::atomic<uint64_t> last_owner{0};
  if (const SetOwner set = judge()) set(block, bytes, ++last_owner);
}

// To be called before the free.
inline void disown(const void* block, size_t bytes) {
  if (const SetOwner set = judge()) set(block, bytes, 0);
}

}  // namespace probe
