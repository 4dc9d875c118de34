// SPDX-License-Identifier: Apache-2.0
// The blocks that other processes may have open, and their leases. A lease states that an importer
// uses a block. A block with a lease is not released to its pool, even when the program has freed
// it and the GPU work of this process is complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/block/block.h"
#include "engine/ipc/wire.h"
#include "util/descriptor.h"
#include "util/lock_order.h"

namespace cupool::engine {

class Device;

/// Thread-safe. Makes no driver call, so that the server's thread can use it.
class IpcExports {
 public:
  /// Returns the handle of a live block: always the same one, unless the program has closed the
  /// socket meanwhile. False: not exported, or the program has closed the file of its pool.
  bool handle_of(const Block& block, ipc::Handle* handle);

  /// Exports a block. False: this process cannot serve importers (no socket, thread, random numbers
  /// or host memory).
  bool add(Block& block, const SharedMemory& memory, ipc::Handle* handle);

  /// What is kept for importers. memory: without the block's record, which goes with its context.
  enum class Kept { block, memory };

  /// Ends the export of a block that the GPU no longer uses, or whose context is gone. True: no
  /// importer holds it, and none can open it any more. False: it is kept until take_ended() returns
  /// it.
  bool end(Block& block, Kept kept);

  /// Memory that was kept for importers and that they have all closed.
  struct Ended {
    Block* block;      ///< null if its context is gone
    Context* context;  ///< null if gone
    Device* device;
    CUdeviceptr address;
  };
  /// The contexts that have such memory, each once; null stands for gone ones, as in Ended.
  std::vector<Context*> contexts_of_ended();
  /// Takes out the ended exports of `context`. The caller is in a visit of it.
  std::vector<Ended> take_ended(const Context* context);
  bool any_ended() const { return any_ended_.load(std::memory_order_acquire); }

  /// Bytes of freed blocks that only importers still hold.
  std::uint64_t kept_bytes(const Device& device);

  /// Whether handles of `exporter` were made by this process.
  bool is_self(std::uint64_t exporter);

  /// For the server: grants a lease, and returns the data that the importer needs.
  ipc::Status grant(std::uint64_t block, const ipc::Secret& secret, SharedMemory* memory,
                    std::uint64_t* requested);
  /// For the server: ends `count` leases.
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
    bool kept = false;  ///< freed by the program: held by leases only, no new ones
  };

  bool add_locked(std::uint64_t number, const Export& exported);
  bool start_locked();
  ipc::Handle handle_locked(std::uint64_t number, const Export& exported) const;

  util::Ranked<util::LockRank::exports> mutex_;
  std::uint64_t name_ = 0;    ///< name of this process's socket; 0: no server yet
  util::KnownFile listener_;  ///< this process's listening socket
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Export> exports_;
  std::unordered_map<CUdeviceptr, std::uint64_t> numbers_;
  std::vector<Ended> ended_;  ///< with room for all exports: leases end without host memory
  std::atomic<bool> any_ended_{false};
};

}  // namespace cupool::engine
