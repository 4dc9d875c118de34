// One GPU: what the settings mean on it, its backend, and memory that outlived its context.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "config/settings.h"
#include "core/backend_malloc.h"
#include "core/size_class.h"
#include "cuda/driver.h"
#include "stats/device_stats.h"

namespace cupool::core {

class PoolBackend;

/// Created once for each device ordinal and never destroyed. Thread-safe.
class Device {
 public:
  /// The settings in bytes on this device.
  struct Limits {
    std::uint64_t max_block = 0;
    std::uint64_t max_cached = 0;
    std::uint64_t max_pending = 0;
    std::uint64_t default_pending = 0;  ///< max_pending where nobody says otherwise
    std::uint64_t release_threshold = 0;
    std::uint64_t max_size = 0;  ///< 0: no limit
    std::uint64_t prealloc = 0;
    bool use_default_pool = false;
    bool ipc = true;
    bool reuse_follow_event_dependencies = true;
    bool reuse_allow_opportunistic = true;
    bool reuse_allow_internal_dependencies = false;
  };

  Device(const cuda::Driver& driver, int ordinal, const config::Settings& settings);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  std::uint64_t total_bytes() const { return total_bytes_; }
  const Limits& limits() const { return limits_; }
  stats::DeviceStats& stats() const { return stats_; }

  /// Where new memory comes from.
  Backend& backend() { return *backend_.load(std::memory_order_acquire); }
  /// The real cuMemAlloc, for what the pools leave near the device's limit.
  Backend& plain() { return plain_; }
  /// The last attempt before out of memory: what lies idle in pieces in the pools may yet do.
  CUresult allocate_last(Context& context, std::uint64_t capacity, CUdeviceptr* address);
  /// Where the memory of a block of `source` goes back to.
  Backend& backend_of(BlockSource source);
  /// Whether anything is to be served now. The first block of any pool of a process takes the
  /// driver some 10 ms (docs/measurements): a thread of ours makes it, by start_pools(), and until
  /// then allocations are the driver's own.
  bool pools_are_started() const {
    return pool_start_.load(std::memory_order_acquire) == Start::done ||
           backend_.load(std::memory_order_relaxed) == &plain_;
  }
  /// Asked at such an allocation. True for one of them: the pools are to be started now. A program
  /// that does not allocate what it has freed before has no use for them.
  bool wants_pools_started();
  void count_free_by_driver() {
    if (!pools_are_started()) freed_by_driver_.fetch_add(1, std::memory_order_relaxed);
  }
  /// A program that allocates and frees without a pause can keep the driver from the thread that
  /// starts the pools (docs/measurements). So its allocations wait for that, 15 ms after it was
  /// asked for: 100 ms at most, and again each second. Whether the pools are started.
  bool wait_for_start() const;
  /// Whether they are, and nobody has.
  bool awaits_pools() const {
    return pool_start_.load(std::memory_order_acquire) == Start::awaited;
  }
  void start_pools(Context& context);
  /// Before anything is allocated: leaves the start to start_pools(), if the settings do.
  void start_pools_later() {
    if (may_start_later_) pool_start_.store(Start::waits, std::memory_order_release);
  }
  /// The first block from a pool is its own start.
  void start_pools_at_first() { pool_start_.store(Start::done, std::memory_order_release); }
  /// From now on new memory is plain; what the pools have given stays.
  void use_plain_memory() { backend_.store(&plain_, std::memory_order_release); }
  /// Whether a quiet block stays with us. Not a pool's, once plain memory is wanted; nor a small
  /// one that is plain because the device was nearly full: it would pin the chunk that it lies in.
  bool keeps(const Block& block) {
    const bool plain = &backend() == &plain_;
    return plain == (block.source != BlockSource::pool) || (!plain && is_large(block.capacity));
  }

  /// Whether a block can be shared with other processes, and what they need for it.
  bool can_share(const Block& block) const;
  CUresult share(const Block& block, SharedMemory* memory);

  /// Gives idle memory of the pools back to the device.
  void trim(Context& context);
  /// The same little by little (see PoolBackend and Decay).
  void end_decay_step(std::uint64_t released);
  bool trim_unneeded(Context& context, std::uint64_t bytes, bool* more);
  /// What the driver says of the pools; not valid where there are none.
  stats::PoolFigures pool_figures() const;
  /// Idle bytes that the pools may be unable to give back while blocks of them are live.
  std::uint64_t pinned_bytes() const;

  /// Bytes that may be held before idle blocks of other sizes are given back for new ones: what the
  /// program itself has needed at most and a share of it, and what may be pending. Below it, a miss
  /// grows: giving back a block that is needed again next would only cost time.
  std::uint64_t footprint_budget() const;

  /// Bytes that may be pending before a free waits: what CUPOOL_MAX_PENDING says and, up to the
  /// default of that, half of what the program has had itself at its peak and has not now, but for
  /// `except`: what it frees just now, and by how much the statistics may be behind. So much is
  /// held anyway: what is pending takes the place of idle memory, and no more of the device. Half,
  /// so that what lies idle need not go back to its pool for it only to be needed again
  /// (docs/measurements).
  std::uint64_t pending_bound(std::uint64_t except) const;

  /// Other devices that can be given access to this one's memory.
  const std::vector<int>& peers() const { return peers_; }

  /// Device `peer` has come into use: gives it access to this one's memory, if it can have it.
  void admit(int peer);

  /// Whether CUPOOL_PREALLOC asks for something and this is the first call.
  bool begin_preallocation();
  /// Reserves it. `context` is current.
  void preallocate(Context& context);
  /// Leaves it to preallocate_some(), by which a thread of ours does it (see PoolBackend).
  void preallocate_later() { preallocates_.store(true, std::memory_order_release); }
  bool preallocates() const { return preallocates_.load(std::memory_order_acquire); }
  Preallocation preallocate_some(Context& context);
  void end_preallocation(Context& context);
  std::uint64_t preallocating_bytes() const;

  /// Pool memory of a context that is gone: pools outlive contexts. Given back to the device in the
  /// next context of it that cupool meets; until then its addresses are nobody's.
  void add_orphans(const std::vector<CUdeviceptr>& addresses);
  void release_orphans(Context& context);
  bool is_orphan(CUdeviceptr address);

 private:
  void find_peers();
  void choose_backend(config::Backend wanted);

  const cuda::Driver& driver_;
  const int ordinal_;
  stats::DeviceStats& stats_;
  std::uint64_t total_bytes_ = 0;
  Limits limits_;
  std::vector<int> peers_;
  bool every_device_is_peer_ = true;
  MallocBackend plain_;
  PoolBackend* pools_ = nullptr;  ///< null: the device has none, or they are not wanted
  std::atomic<Backend*> backend_{&plain_};
  enum class Start { waits, awaited, done };
  bool may_start_later_ = false;
  std::atomic<Start> pool_start_{Start::done};
  std::atomic<unsigned> freed_by_driver_{0};  ///< blocks, before the pools
  std::atomic<std::uint64_t> awaited_since_ns_{0};
  std::mutex mutex_;
  bool preallocated_ = false;
  std::atomic<bool> preallocates_{false};
  std::vector<CUdeviceptr> orphans_;
  std::atomic<bool> has_orphans_{false};
};

}  // namespace cupool::core
