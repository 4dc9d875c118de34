// SPDX-License-Identifier: Apache-2.0
// A thread's first free only notes what the others have done: looks before it tell the thread
// nothing.
#include "engine/host/host_look.h"

#include <atomic>
#include <cstdint>

namespace cupool::engine {

bool look_is_due() {
  constexpr std::uint32_t kLookEvery = 256;
  static std::atomic<std::uint32_t> looks{0};
  thread_local std::uint32_t frees_to_look = 1;
  thread_local std::uint32_t looks_seen = ~std::uint32_t{0};
  if (--frees_to_look != 0) return false;
  frees_to_look = kLookEvery;
  const std::uint32_t before = looks_seen;
  looks_seen = looks.load(std::memory_order_relaxed);
  if (looks_seen != before) return false;
  looks_seen = looks.fetch_add(1, std::memory_order_relaxed) + 1;
  return true;
}

}  // namespace cupool::engine
