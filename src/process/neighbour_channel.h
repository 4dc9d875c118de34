// SPDX-License-Identifier: Apache-2.0
// Answers other processes of the same user: those that run out of memory on a device this process
// has pools on, and `cupool top`. Read with docs/design.md, section Neighbours.
#pragma once

#include "engine/serve/allocator.h"

namespace cupool::process {

/// Starts the thread that listens. `keeps_all`: the process gives nothing back. To be called once.
/// False if the thread cannot be started: neighbours then rely on decay.
bool start_neighbour_channel(engine::Allocator& allocator, bool keeps_all);

}  // namespace cupool::process
