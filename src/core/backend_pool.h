// The backend over the driver's memory pools: two pools of our own on each device, so that small
// blocks do not pin large chunks and large blocks are 2 MiB aligned; or the device's default pool.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <mutex>
#include <vector>

#include "core/backend.h"
#include "core/block_cache.h"
#include "core/device.h"
#include "core/ipc_socket.h"
#include "cuda/driver.h"

namespace cupool::core {

class PoolBackend final : public Backend {
 public:
  PoolBackend(const cuda::Driver& driver, Device& device) : driver_(driver), device_(device) {}

  BlockSource source() const override { return BlockSource::pool; }
  CUresult allocate(Context& context, std::uint64_t capacity, CUdeviceptr* address) override;
  bool release(Context& context, CUdeviceptr address) override;

  /// As allocate(), but the pool may take the last of the device for it.
  CUresult allocate_last(Context& context, std::uint64_t capacity, CUdeviceptr* address);

  /// Gives idle memory back to the device, as much as the driver can.
  void trim(Context& context);

  /// Ends a step of decay: `released` is what went back to the pools in it because it was unneeded.
  void end_decay_step(std::uint64_t released);
  /// Gives about `bytes` of what lay idle in the pools for the last steps back to the device; says
  /// in `*more` whether there is more of it. False: nothing has gone back. Both are for one thread.
  bool trim_unneeded(Context& context, std::uint64_t bytes, bool* more);

  /// What the driver says of the pools. Never waits.
  stats::PoolFigures figures() const;

  /// What may be idle beside live blocks, in steps that cannot go back to the device: one of each
  /// pool.
  std::uint64_t pinned_bytes() const;

  /// Gives another device access to the pools.
  void admit(int peer);

  /// Whether a block of `capacity` can be shared with other processes, and what they need for it.
  bool can_share(std::uint64_t capacity) const;
  CUresult share(std::uint64_t capacity, CUdeviceptr address, SharedMemory* memory);

  /// Makes the pools, has a block of each and gives it back to the device: what takes long the
  /// first time only. For a thread of ours; where it fails, the program's own call makes them.
  void start(Context& context);

  /// Reserves CUPOOL_PREALLOC bytes in the pool of large blocks. `context` is current.
  void preallocate(Context& context);

  /// The same by a slice at a time, for a thread of ours.
  Preallocation preallocate_some(Context& context);
  /// Ends that, and gives what has been reserved to the pool: somebody needs memory.
  void end_preallocation(Context& context);
  /// What preallocate_some() holds, which is idle.
  std::uint64_t preallocating_bytes() const {
    return preallocating_bytes_.load(std::memory_order_relaxed);
  }

  /// True if the driver has pools and this device supports them.
  static bool supported(const cuda::Driver& driver, int device);

 private:
  enum Kind { kSmall, kLarge, kKinds };
  enum class Growth { leaves_some, to_the_limit };

  static constexpr std::uint64_t kGrowthStep = 32ull << 20;  ///< (docs/measurements)
  /// What growth leaves free on the device: a step for each of the two pools. Below it a step that
  /// is not filled is memory that another allocator of the program, or its code, would have had.
  static constexpr std::uint64_t kLeftFree = 2 * kGrowthStep;

  CUresult allocate(Context& context, std::uint64_t capacity, Growth growth, CUdeviceptr* address);

  CUresult pool_of(Kind kind, CUstream stream, CUmemoryPool* pool);
  CUresult create(Kind kind, CUstream stream, CUmemoryPool* pool);
  CUresult create_with(CUmemAllocationHandleType handle, CUmemoryPool* pool) const;
  bool handles_supported() const;
  bool gives_back(CUmemoryPool pool, CUstream stream) const;
  void configure(Kind kind, CUmemoryPool pool);
  void set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value,
                     const char* option) const;
  void grant(Kind kind, CUmemoryPool pool, int peer);
  void shed_slack(Kind kind, CUmemoryPool pool);
  std::uint64_t attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute) const;
  bool read_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, cuuint64_t* value) const;
  bool would_exceed_maximum(std::uint64_t capacity) const;
  bool taken_by_program(std::uint64_t wanted) const;
  void release_all(Context& context, const std::vector<CUdeviceptr>& addresses);
  bool lacks_room(CUmemoryPool pool, std::uint64_t capacity, Growth growth) const;

  const cuda::Driver& driver_;
  Device& device_;
  std::mutex create_mutex_;
  std::atomic<CUmemoryPool> pools_[kKinds] = {};
  std::atomic<std::uint64_t> last_reserved_[kKinds] = {};
  std::bitset<stats::kMaxDevices> admitted_[kKinds];  ///< under create_mutex_
  // Pools that other processes can import. Whether this driver's may be used is found out once.
  enum class Exportable { unknown, yes, no } exportable_ = Exportable::unknown;
  std::atomic<bool> shareable_[kKinds] = {};
  ipc::Descriptor files_[kKinds];
  // For decay: idle bytes of a pool.
  struct Slack {
    std::array<std::uint64_t, BlockCache::kDecaySteps> at_end{};  ///< of the last steps
    std::uint64_t unneeded = 0;                                   ///< of them, for long enough
    std::uint64_t to_trim = 0;                                    ///< of these, in this step
  } slack_[kKinds];
  std::size_t decay_step_ = 0;
  std::mutex preallocation_mutex_;
  bool preallocation_ended_ = false;
  std::vector<CUdeviceptr> preallocating_;  ///< slices: the pool would hand them out again
  std::atomic<std::uint64_t> preallocating_bytes_{0};
  std::atomic<bool> peer_refused_{false};  ///< copies to a device would write nothing
};

}  // namespace cupool::core
