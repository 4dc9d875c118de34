// Memory of other processes that the program has opened: what the driver documents for
// cuIpcOpenMemHandle and cuIpcCloseMemHandle, over pools.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "core/ipc_socket.h"
#include "core/ipc_wire.h"
#include "cuda/driver.h"

namespace cupool::core {

class Context;

/// Thread-safe. Opening and closing may wait for the exporter, kPatienceNs at most; the questions
/// never wait.
class IpcImports {
 public:
  explicit IpcImports(const cuda::Driver& driver) : driver_(driver) {}

  /// Opens a handle of ours in `context`, which is current. A block that is open already gives the
  /// same address and one reference more. A code that is no success is for the program.
  CUresult open(const ipc::Handle& handle, Context& context, CUdeviceptr* address);

  /// Takes one reference away. With the last one the contexts' work is waited for, and the memory
  /// goes back to the exporter. Nothing: not opened here.
  std::optional<CUresult> close(CUdeviceptr address);

  /// An open import that begins at `base`.
  struct Seen {
    CUcontext context = nullptr;
    std::uint64_t requested = 0;
  };
  std::optional<Seen> find(CUdeviceptr base);

  /// Whether imported memory, open or not yet released, begins at `address`.
  bool holds(CUdeviceptr address);

  /// Imports that were opened in no other context are closed; the next open() or close() releases
  /// them.
  void context_gone(const Context& context);

 private:
  struct Pool {
    CUmemoryPool handle = nullptr;
    std::set<int> devices;  ///< that have been given access
  };
  struct Exporter {
    ipc::Descriptor socket;
    std::uint64_t last_sequence = 0;
    std::size_t imports = 0;
    std::map<std::uint64_t, Pool> pools;
    std::vector<ipc::Request> unsent;  ///< closes that did not fit into the socket
  };
  struct Import {
    std::uint64_t exporter = 0;
    std::uint64_t block = 0;
    std::uint64_t pool = 0;
    std::uint64_t requested = 0;
    ipc::Secret secret{};
    unsigned references = 0;  ///< 0: closed by the program, not yet released
    bool in_release = false;
    std::vector<Context*> contexts;  ///< that opened it and are not gone
  };

  bool reopen(const ipc::Handle& handle, Context& context, CUdeviceptr* address, CUresult* result);
  CUresult import(const ipc::Handle& handle, Context& context, CUdeviceptr* address);
  bool ask(Exporter& exporter, const ipc::Handle& handle, ipc::Reply* reply,
           ipc::Descriptor* pool_file);
  bool connect(Exporter& exporter, std::uint64_t name, std::uint64_t deadline_ns);
  ipc::Transfer exchange(Exporter& exporter, const ipc::Request& request, ipc::Reply* reply,
                         ipc::Descriptor* pool_file, std::uint64_t deadline_ns);
  void end_lease(Exporter& exporter, std::uint64_t block);
  bool send_unsent(Exporter& exporter);
  CUresult map(Exporter& exporter, const ipc::Reply& reply, const ipc::Descriptor& pool_file,
               Context& context, CUdeviceptr* address);
  CUresult admit(Pool& pool, Context& context);
  void admit_peers(Pool& pool, CUdeviceptr address);
  CUresult release(CUdeviceptr address);
  void release_closed();
  void forget_dead_exporters();

  const cuda::Driver& driver_;
  // Held over a whole open and over each release, the exchange with the exporter included; before
  // table_mutex_. No wait for the GPU happens under either (I4).
  std::mutex exchange_mutex_;
  std::map<std::uint64_t, Exporter> exporters_;
  std::mutex table_mutex_;
  std::map<CUdeviceptr, Import> imports_;
  std::atomic<std::size_t> count_{0};  ///< entries of imports_
};

}  // namespace cupool::core
