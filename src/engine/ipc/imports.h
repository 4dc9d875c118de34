// SPDX-License-Identifier: Apache-2.0
// Memory of other processes that the program has opened: the documented behaviour of
// cuIpcOpenMemHandle and cuIpcCloseMemHandle, implemented with pools.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "channel/socket.h"
#include "cuda/driver.h"
#include "engine/ipc/wire.h"
#include "stats/device_stats.h"
#include "util/lock_order.h"

namespace cupool::engine {

class Context;

/// Thread-safe. open() and close() may wait for the exporter, for kPatienceNs at most; queries
/// never wait.
class IpcImports {
 public:
  explicit IpcImports(const cuda::Driver& driver) : driver_(driver) {}

  /// Opens a cupool handle in `context`, which must be current. A block that is already open
  /// returns the same address and gets one more reference. An error is returned to the program.
  /// Out of host memory: CUDA_ERROR_OUT_OF_MEMORY, without effect.
  CUresult open(const ipc::Handle& handle, Context& context, CUdeviceptr* address);

  /// Removes one reference. The last one waits for the work of the contexts that opened the memory,
  /// and returns it to the exporter. `std::nullopt`: not opened here.
  std::optional<CUresult> close(CUdeviceptr address);

  /// An open import that begins at `base`.
  struct Seen {
    CUcontext context = nullptr;
    std::uint64_t requested = 0;
  };
  std::optional<Seen> find(CUdeviceptr base);

  /// Whether imported memory, open or not yet released, begins at `address`.
  bool holds(CUdeviceptr address);

  /// Closes the imports that only `context` had opened; the next open() or close() releases them.
  void context_gone(const Context& context);

 private:
  struct Pool {
    CUmemoryPool handle = nullptr;
    std::array<bool, stats::kMaxDevices> admitted{};  ///< by device: whether it has access
  };
  struct Exporter {
    util::Descriptor socket;
    std::uint64_t last_sequence = 0;
    std::size_t imports = 0;
    std::map<std::uint64_t, Pool> pools;
    /// Closes that did not fit into the socket, with room for those of all imports: leases end
    /// without host memory.
    std::vector<ipc::Request> unsent;
  };
  struct Import {
    std::uint64_t exporter = 0;
    std::uint64_t block = 0;
    std::uint64_t pool = 0;
    std::uint64_t requested = 0;
    ipc::Secret secret{};
    unsigned references = 0;  ///< 0: closed by the program, not yet released
    bool in_release = false;
    std::vector<Context*> contexts;  ///< contexts that opened it and are not gone
  };

  using Imports = std::map<CUdeviceptr, Import>;

  static void remove_context(Import& import, const Context& context);
  bool reopen(const ipc::Handle& handle, Context& context, CUdeviceptr* address, CUresult* result);
  CUresult import(const ipc::Handle& handle, Context& context, CUdeviceptr* address);
  bool ask(Exporter& exporter, const ipc::Handle& handle, ipc::Reply* reply,
           util::Descriptor* pool_file);
  bool connect(Exporter& exporter, std::uint64_t name, std::uint64_t deadline_ns);
  channel::Transfer exchange(Exporter& exporter, const ipc::Request& request, ipc::Reply* reply,
                             util::Descriptor* pool_file, std::uint64_t deadline_ns);
  void end_lease(Exporter& exporter, std::uint64_t block);
  bool send_unsent(Exporter& exporter);
  CUresult map(Exporter& exporter, const ipc::Reply& reply, const util::Descriptor& pool_file,
               Context& context, CUdeviceptr* address);
  CUresult admit(Pool& pool, Context& context);
  void admit_peers(Pool& pool, CUdeviceptr address);
  CUresult release(CUdeviceptr address);
  void release_closed();
  void forget_dead_exporters();

  const cuda::Driver& driver_;
  // Held during a whole open and during each release, including the exchange with the exporter.
  // Taken before table_mutex_. No wait for the GPU happens under either (I4).
  util::Ranked<util::LockRank::import_exchange> exchange_mutex_;
  std::map<std::uint64_t, Exporter> exporters_;
  util::Ranked<util::LockRank::import_table> table_mutex_;
  Imports imports_;
  std::atomic<std::size_t> count_{0};  ///< entries of imports_
};

}  // namespace cupool::engine
