// SPDX-License-Identifier: Apache-2.0
// The two pools of a device. Small blocks have their own, so that they do not pin the chunks of
// large blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/block/size_class.h"

namespace cupool::engine {

enum class PoolKind { small, large };
constexpr std::size_t kPoolKinds = 2;
constexpr PoolKind kEachPoolKind[kPoolKinds] = {PoolKind::small, PoolKind::large};

constexpr std::size_t index_of(PoolKind kind) {
  return static_cast<std::size_t>(kind);
}
inline PoolKind pool_kind_of(std::uint64_t capacity) {
  return is_large(capacity) ? PoolKind::large : PoolKind::small;
}

}  // namespace cupool::engine
