// The blocks that other processes may have open, and their leases. A lease is the word of an
// importer that it uses a block; while there is one, the block does not go back to the pool, even
// when the program has freed it and the GPU of this process is done with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/backend.h"
#include "core/block.h"
#include "core/ipc_wire.h"

namespace cupool::core {

class Device;

/// Thread-safe; calls nothing of the driver, so that the server's thread may use it.
class IpcExports {
 public:
  /// Makes the handle of a live block, the same one each time. False: it has not been exported.
  bool handle_of(const Block& block, ipc::Handle* handle);

  /// Exports a block. False: this process cannot serve importers (no socket, no thread, no random
  /// numbers).
  bool add(Block& block, const SharedMemory& memory, ipc::Handle* handle);

  /// The block is quiet, or its context is gone. True: no importer holds it, and none can any more.
  /// False: it is kept until take_ended() gives it out. `context_gone`: the record goes away, only
  /// the memory is kept.
  bool end(Block& block, bool context_gone);

  /// Memory that was kept for importers which are gone now.
  struct Ended {
    Block* block;  ///< null if its context is gone
    Device* device;
    CUdeviceptr address;
  };
  std::vector<Ended> take_ended();
  bool any_ended() const { return any_ended_.load(std::memory_order_acquire); }

  /// Bytes of blocks that importers alone still hold.
  std::uint64_t kept_bytes(const Device& device);

  /// Whether handles of `exporter` are of this process.
  bool is_self(std::uint64_t exporter);

  /// For the server: gives a lease, and what the importer needs.
  ipc::Status grant(std::uint64_t block, const ipc::Secret& secret, SharedMemory* memory,
                    std::uint64_t* requested);
  /// For the server: `count` leases have ended.
  void end_leases(std::uint64_t block, std::uint64_t count);

 private:
  struct Export {
    Block* block = nullptr;
    Device* device = nullptr;
    CUdeviceptr address = 0;
    std::uint64_t capacity = 0;
    std::uint64_t requested = 0;
    ipc::Secret secret{};
    SharedMemory memory;
    std::uint64_t leases = 0;
    bool kept = false;  ///< freed by the program: only leases hold it, and there are no new ones
  };

  bool start_locked();
  ipc::Handle handle_locked(std::uint64_t number, const Export& exported) const;

  std::mutex mutex_;
  std::uint64_t name_ = 0;  ///< of this process's socket; 0: no server yet
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Export> exports_;
  std::unordered_map<CUdeviceptr, std::uint64_t> numbers_;
  std::vector<Ended> ended_;
  std::atomic<bool> any_ended_{false};
};

}  // namespace cupool::core
