// SPDX-License-Identifier: Apache-2.0
// Where processes of one user find each other.
#pragma once

#include <cstdint>
#include <functional>

#include "channel/socket.h"

namespace cupool::channel {

/// A socket that neighbours find; invalid on failure. One per process.
Descriptor listen_for_neighbours();

/// Connects to every other process of the same effective user that listens, and calls `visit` with
/// the connection and the process, until it returns false or the deadline has passed. Waits for
/// none.
void connect_to_neighbours(std::uint64_t deadline_ns,
                           const std::function<bool(Descriptor socket, const Peer& peer)>& visit);

}  // namespace cupool::channel
