// Epoch-based reclamation with the GPU as the reader: when may a freed block be handed out again?
//
// A freed block joins the open epoch of its context. Closing an epoch records its fence, one event
// that captures all work of the context (cuCtxRecordEvent). When the fence has been seen complete,
// nothing on the GPU can still use the epoch's blocks, nor those of older epochs: they are quiet.
// Where contexts cannot record events, an epoch is closed without a fence and becomes quiet by a
// synchronisation of the context.
//
// A thread that frees many blocks keeps them itself: its batch only joins the open epoch, by number
// and bytes, and is quiet once quiet_up_to() has reached that number. So one fence serves all
// threads whose batches had joined before it, and their blocks never meet.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "core/block.h"
#include "core/open_epoch.h"
#include "core/shared_mutex.h"
#include "cuda/driver.h"
#include "stats/device_stats.h"

namespace cupool::core {

/// Thread-safe. Its lock is held while an event is recorded or queried and while a capture begins
/// or ends (I3), never while the host waits (I4). Lock order: this lock is taken before any other;
/// that of the open epoch's blocks after all others, and nothing is called under it.
// What is written apart from what is read. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Ordering {
 public:
  Ordering(const cuda::Driver& driver, CUcontext context, stats::DeviceStats& stats);

  /// When an epoch that nobody waits for is closed.
  struct Batch {
    std::size_t blocks;
    std::uint64_t bytes;
  };

  /// Puts freed blocks into the open epoch and says which one that is.
  EpochNumber retire(BlockList& blocks);
  EpochNumber retire(Block* block) {
    BlockList one;
    one.push(block);
    return retire(one);
  }

  /// The same for a batch of `frees` blocks, `bytes` in all, that its thread keeps: says of which
  /// epoch it is from now on. Its bytes are pending until that epoch is quiet.
  EpochNumber join(std::uint64_t bytes, std::size_t frees);

  /// The newest epoch that is known to be quiet, and with it all older ones. One load: for blocks
  /// that have joined, what the caller does next comes after the GPU's last use of them.
  EpochNumber quiet_up_to() const { return quiet_up_to_.load(std::memory_order_acquire); }

  /// Takes over blocks that had joined `epoch`, from a thread that gives them up.
  void adopt(EpochNumber epoch, BlockList& blocks);

  /// After a thread's batch has joined: closes the open epoch as close_if_full() does, and looks at
  /// older fences, unless another thread is at that already: a later call brings the fence then.
  CUresult end_batch(const Batch& batch) {
    const std::unique_lock<SharedMutex> lock(mutex_, std::try_to_lock);
    return lock.owns_lock() ? close_if_full_locked(batch) : CUDA_SUCCESS;
  }

  /// Closes the open epoch, recording its fence, if it holds as much as `batch` says.
  CUresult close_if_full(const Batch& batch);

  /// Waits until the GPU is done with everything retired up to and with `epoch`, closing it if it
  /// is open. A code that is no success is the driver's; then the blocks stay retired.
  /// CUDA_ERROR_NOT_READY is no error: it could not be waited for now. `*waited` (may be null) is
  /// set if the GPU was not done already. `limit_ns`: give up after that long; 0: never.
  CUresult wait(EpochNumber epoch, bool* waited = nullptr, std::uint64_t limit_ns = 0);

  /// Closes the open epoch and waits for everything retired so far, as wait() does.
  CUresult wait_for_all(bool* waited = nullptr, std::uint64_t limit_ns = 0);

  /// Waits for all work of the context submitted so far, as wait() does, whether or not anything
  /// was retired.
  CUresult wait_for_work();

  /// Waits for the oldest epoch, as wait() does.
  CUresult wait_for_oldest(bool* waited);

  /// Bytes of all retired blocks, of those that threads keep as well. Two relaxed loads.
  std::uint64_t pending_bytes() const {
    return closed_bytes_.load(std::memory_order_relaxed) + open_.bytes();
  }

  /// Moves the blocks of each epoch whose fence has completed to `quiet`. `close_open`: closes the
  /// open epoch first, so that the GPU's next steps can make it quiet. Never waits for the GPU. A
  /// code that is no success is the driver's.
  CUresult poll(bool close_open, BlockList* quiet);
  /// The same, unless another thread is at such a thing: then nothing is done.
  CUresult try_poll(bool close_open, BlockList* quiet);
  /// The same; while other threads are at it nothing is done once `enough` is quiet, which their
  /// fences bring about as well. So threads that share fences do not stand in a queue for them.
  CUresult poll_unless_quiet(EpochNumber enough, bool close_open, BlockList* quiet);

  /// Takes over what other calls than poll() made quiet since the last call.
  BlockList take_quiet();
  /// Whether there are blocks here that no thread keeps, retired or quiet. One relaxed load.
  bool holds_blocks() const { return held_blocks_.load(std::memory_order_relaxed) != 0; }

  /// Around the program's own synchronisation of the context: what was retired before it began is
  /// quiet once it has succeeded.
  EpochNumber begin_synchronize();
  void end_synchronize(EpochNumber before);

  /// Runs `begin` (the driver's begin of a capture) with no fence being recorded and the context
  /// not being synchronised by us, and keeps the stream in mind if it succeeded.
  template <typename Call>
  CUresult begin_capture(CUstream stream, const Call& begin) {
    std::unique_lock<SharedMutex> lock(mutex_);
    let_synchronisations_in(lock);
    keep_barrier_locked();
    const CUresult result = begin();
    if (result == CUDA_SUCCESS) {
      captures_.push_back(stream);
      captures_in_process_.fetch_add(1, std::memory_order_acq_rel);
    }
    return result;
  }

  /// Forgets a capturing stream after `end` (end of the capture, destruction of the stream) if
  /// `still_capturing` says no.
  template <typename Call, typename Query>
  CUresult end_capture(CUstream stream, const Call& end, const Query& still_capturing) {
    const std::lock_guard<SharedMutex> lock(mutex_);
    const CUresult result = end();
    if (!still_capturing()) forget_capture_locked(stream);
    return result;
  }

  bool captures(CUstream stream) const;

  /// Whether the memory at `address`, of the device or the host, is kept as a barrier: no memory of
  /// the program's.
  bool is_barrier(CUdeviceptr address) const;

  /// Whether any stream of the process is capturing. One load.
  static bool any_capture() { return captures_in_process_.load(std::memory_order_acquire) != 0; }

  /// Drops everything because the context is gone: epochs are emptied, events are the driver's.
  void abandon();

 private:
  static constexpr Batch kAnything{1, ~std::uint64_t{0}};
  static constexpr Batch kEvenNothing{0, ~std::uint64_t{0}};
  struct Epoch {
    EpochNumber number = 0;
    CUevent fence = nullptr;  ///< null: closed without one
    BlockList blocks;         ///< those that no thread keeps
    std::uint64_t bytes = 0;  ///< pending, with what threads keep
    std::size_t frees = 0;    ///< the same in blocks
    unsigned waiters = 0;     ///< threads that wait on the fence
    bool seen_complete = false;
  };

  /// Memory of the driver whose release is a barrier: of the device, or of the host where the
  /// device is full.
  struct Barrier {
    CUdeviceptr device = 0;
    void* host = nullptr;  ///< page-locked
    bool none() const { return device == 0 && host == nullptr; }
  };

  void let_synchronisations_in(std::unique_lock<SharedMutex>& lock);
  Barrier make_barrier() const;
  CUresult release(const Barrier& barrier) const;
  void keep_barrier_locked();
  bool capturing_locked() const { return !captures_.empty(); }
  void forget_capture_locked(CUstream stream);
  bool take_open(const Batch& least, Epoch* epoch);
  void reopen(Epoch& epoch);
  CUresult close_locked(bool with_fence, const Batch& least);
  CUresult close_if_full_locked(const Batch& batch);
  CUresult look_at_fences_locked();
  CUresult poll_locked(bool close_open, BlockList* quiet);
  CUresult create_event(CUevent* event);
  Epoch* first_fenced_from_locked(EpochNumber epoch);
  void make_quiet_locked(BlockList& blocks);
  BlockList take_quiet_locked();
  void harvest_locked(EpochNumber up_to);
  CUresult record_locked(const Batch& least);
  CUresult query_locked(Epoch& epoch);
  CUresult wait_for_fence(Epoch* fenced, std::unique_lock<SharedMutex>& lock, bool* waited,
                          std::uint64_t limit_ns);
  CUresult wait_for_event(CUevent fence) const;
  CUresult wait_at_most(CUevent fence, std::uint64_t limit_ns) const;
  CUresult wait_for_context(std::unique_lock<SharedMutex>& lock, bool* waited, bool with_free);

  const cuda::Driver& driver_;
  const CUcontext context_;
  stats::DeviceStats& stats_;
  alignas(128) mutable SharedMutex mutex_;
  SharedSpinLock open_mutex_;  ///< of open_blocks_, and of joining with some of them
  BlockList open_blocks_;      ///< of the open epoch: those that no thread keeps
  std::deque<Epoch> closed_;   ///< oldest first
  BlockList quiet_;
  std::vector<CUevent> spare_events_;
  std::vector<CUstream> captures_;
  unsigned beginning_ = 0;      ///< threads that are about to begin a capture
  unsigned synchronising_ = 0;  ///< threads of ours that synchronise the context, or are about to
  std::condition_variable_any synchronised_;
  std::uint64_t lives_ = 0;  ///< how often the context went
  Barrier barrier_;          ///< kept for the next wait in a capture, or none
  static inline std::atomic<unsigned> captures_in_process_{0};
  bool can_record_;
  // Written by all threads at the end of a batch.
  alignas(128) OpenEpoch open_;
  // Read by all threads at the end of a batch.
  alignas(128) std::atomic<EpochNumber> quiet_up_to_{0};
  std::atomic<std::uint64_t> closed_bytes_{0};  ///< pending, of closed epochs
  std::atomic<std::size_t> held_blocks_{0};
};

}  // namespace cupool::core
