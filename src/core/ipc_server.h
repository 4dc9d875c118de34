// The exporter's side of a lease: a thread that answers importers. It makes no CUDA call and takes
// no lock but that of the exports, so that nothing the program does can make it wait.
#pragma once

#include <cstdint>

namespace cupool::core {

class IpcExports;

namespace ipc {

/// Listens under `name` and starts the thread, which runs to the end of the process and blocks all
/// signals. `exports` is never destroyed. False: no socket or no thread was to be had (errno).
bool start_server(IpcExports& exports, std::uint64_t name);

}  // namespace ipc
}  // namespace cupool::core
