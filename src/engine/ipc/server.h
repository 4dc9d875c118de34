// SPDX-License-Identifier: Apache-2.0
// The exporter's side of a lease: a thread that answers importers. It makes no CUDA call and takes
// no lock except that of the exports, so the program cannot block it.
#pragma once

#include <cstdint>

#include "util/descriptor.h"

namespace cupool::engine {

class IpcExports;

namespace ipc {

/// Listens under `name` at `*socket` and starts the thread. The thread blocks all signals and runs
/// until the program has closed the socket and all importers are gone. `exports` must never be
/// destroyed. False: no socket or no thread (see errno).
bool start_server(IpcExports& exports, std::uint64_t name, util::KnownFile* socket);

}  // namespace ipc
}  // namespace cupool::engine
