// SPDX-License-Identifier: Apache-2.0
// The lock that the parts of an ordering share: its epochs, its captures and its barriers.
#pragma once

#include <mutex>

#include "engine/block/shared_mutex.h"

namespace cupool::engine {

/// Held while an event is recorded, or an event or a stream queried, and while a capture begins or
/// ends (I3). Never held while the host waits (I4).
using OrderingMutex = SharedMutex<util::LockRank::ordering>;
using OrderingGuard = std::lock_guard<OrderingMutex>;
using OrderingLock = std::unique_lock<OrderingMutex>;

}  // namespace cupool::engine
