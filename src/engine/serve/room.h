// SPDX-License-Identifier: Apache-2.0
// Whether a device has room for a call that it has refused: then idle memory is not the cause.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/context/context_registry.h"
#include "engine/reclaim/patience.h"
#include "engine/serve/async_memory.h"

namespace cupool::engine {

/// Part of OutOfMemory. Thread-safe; memory comes and goes meanwhile.
class Room {
 public:
  Room(const cuda::Driver& driver, ContextRegistry& registry, AsyncMemory& async)
      : driver_(driver), registry_(registry), async_(async) {}

  /// Whether `device` has so much free memory that a refusal of `wanted_bytes` (0: not known) has
  /// another cause.
  bool is_there(Device& device, std::uint64_t wanted_bytes);

  /// Whether is_there() holds for each device of the process, or for `only` (null: not known), and
  /// idle memory lies on one of them.
  bool beside_idle_memory(const Device* only, std::uint64_t wanted_bytes);

  /// Whether as much as `wanted_bytes` (0: not known) is free on `device`.
  bool is_just_there(Device& device, std::uint64_t wanted_bytes);

  /// Whether less than `bytes` are known to be free on `device`.
  bool lacks(Device& device, std::uint64_t bytes);

  /// Whether a call may succeed that was refused again after idle memory was given back.
  enum class Outlook { give_back, try_again, hopeless };
  Outlook outlook(Context& context, Patience& patience);

 private:
  bool may_have_limit(const Device& device) const;
  std::optional<std::uint64_t> free_bytes(Context& context);
  std::optional<std::uint64_t> free_bytes(Device& device);
  std::uint64_t idle_bytes(Device& device);

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  AsyncMemory& async_;
};

}  // namespace cupool::engine
