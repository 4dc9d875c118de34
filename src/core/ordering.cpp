// Epochs and fences. Source for what an event of a context covers: CUDA Driver API,
// cuCtxRecordEvent, and docs/measurements.
#include "core/ordering.h"

#include <algorithm>
#include <utility>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::core {

using stats::Counter;

Ordering::Ordering(const cuda::Driver& driver, CUcontext context, stats::DeviceStats& stats)
    : driver_(driver),
      context_(context),
      stats_(stats),
      can_record_(driver.cuCtxRecordEvent != nullptr) {}

EpochNumber Ordering::retire(BlockList& blocks) {
  if (CUPOOL_MUTATED("obvious-mapping")) {
    const std::lock_guard<SharedMutex> lock(mutex_);
    held_blocks_.fetch_add(blocks.count, std::memory_order_relaxed);
    make_quiet_locked(blocks);
    return 0;
  }
  const std::lock_guard<SharedSpinLock> lock(open_mutex_);
  held_blocks_.fetch_add(blocks.count, std::memory_order_relaxed);
  const EpochNumber number = open_.join(blocks.bytes, blocks.count);
  open_blocks_.splice(blocks);
  return number;
}

// The addition orders a free before each fence that is recorded after its epoch was closed.
EpochNumber Ordering::join(std::uint64_t bytes, std::size_t frees) {
  if (CUPOOL_MUTATED("obvious-mapping")) return 0;
  const EpochNumber number = open_.join(bytes, frees);
  return CUPOOL_MUTATED("fence-before-free") ? number - 1 : number;
}

void Ordering::adopt(EpochNumber epoch, BlockList& blocks) {
  const std::lock_guard<SharedMutex> lock(mutex_);
  held_blocks_.fetch_add(blocks.count, std::memory_order_relaxed);
  if (epoch <= quiet_up_to()) return make_quiet_locked(blocks);
  // Of an epoch that could not be closed, the blocks are in a later one: any later one will do.
  for (Epoch& closed : closed_) {
    if (closed.number >= epoch) return closed.blocks.splice(blocks);
  }
  const std::lock_guard<SharedSpinLock> open_lock(open_mutex_);
  open_blocks_.splice(blocks);
}

CUresult Ordering::close_if_full(const Batch& batch) {
  const std::lock_guard<SharedMutex> lock(mutex_);
  return close_if_full_locked(batch);
}

CUresult Ordering::close_if_full_locked(const Batch& batch) {
  const EpochNumber before = closed_.empty() ? 0 : closed_.back().number;
  const CUresult result = record_locked(batch);
  if (result != CUDA_SUCCESS || closed_.empty() || closed_.back().number == before) return result;
  // One look at once: what is still running now is a stall that these frees avoided.
  const std::size_t frees = closed_.back().frees;
  const EpochNumber closed = closed_.back().number;
  const CUresult state = look_at_fences_locked();
  if (state == CUDA_SUCCESS && quiet_up_to() < closed) {
    stats_.add(Counter::frees_unwaited_busy_total, frees);
  }
  return state;
}

CUresult Ordering::wait(EpochNumber epoch, bool* waited, std::uint64_t limit_ns) {
  std::unique_lock<SharedMutex> lock(mutex_);
  if (epoch <= quiet_up_to()) return CUDA_SUCCESS;
  Epoch* fenced = first_fenced_from_locked(epoch);
  if (fenced == nullptr) {
    const CUresult result = record_locked(kEvenNothing);
    if (result != CUDA_SUCCESS) return result;
    fenced = first_fenced_from_locked(epoch);
  }
  if (fenced != nullptr) {
    const CUresult result = wait_for_fence(fenced, lock, waited, limit_ns);
    if (limit_ns != 0 || !cuda::is_refusal(result)) return result;
  }
  const bool broken_by_synchronising = can_record_ || capturing_locked() || beginning_ != 0;
  return wait_for_context(lock, waited, broken_by_synchronising);
}

CUresult Ordering::wait_for_all(bool* waited, std::uint64_t limit_ns) {
  EpochNumber newest = 0;
  {
    const std::lock_guard<SharedMutex> lock(mutex_);
    newest = open_.number();
    if (open_.empty() && closed_.empty()) return CUDA_SUCCESS;
  }
  return wait(newest, waited, limit_ns);
}

CUresult Ordering::wait_for_work() {
  return wait(open_.number());
}

CUresult Ordering::wait_for_oldest(bool* waited) {
  EpochNumber oldest = 0;
  {
    const std::lock_guard<SharedMutex> lock(mutex_);
    oldest = closed_.empty() ? open_.number() : closed_.front().number;
  }
  return wait(oldest, waited);
}

CUresult Ordering::poll(bool close_open, BlockList* quiet) {
  const std::lock_guard<SharedMutex> lock(mutex_);
  return poll_locked(close_open, quiet);
}

CUresult Ordering::try_poll(bool close_open, BlockList* quiet) {
  const std::unique_lock<SharedMutex> lock(mutex_, std::try_to_lock);
  return lock.owns_lock() ? poll_locked(close_open, quiet) : CUDA_SUCCESS;
}

CUresult Ordering::poll_unless_quiet(EpochNumber enough, bool close_open, BlockList* quiet) {
  // Some 20 us, as long as a few fences take: to sleep in a mutex and be woken takes longer.
  constexpr unsigned kTries = 8;
  constexpr unsigned kLooks = 64;  // between two tries
  std::unique_lock<SharedMutex> lock(mutex_, std::try_to_lock);
  for (unsigned tries = 1; !lock.owns_lock() && tries < kTries; ++tries) {
    for (unsigned looks = 0; looks < kLooks; ++looks, relax()) {
      if (quiet_up_to() >= enough) return CUDA_SUCCESS;
    }
    if (!lock.try_lock() && tries > kTries / 2) sched_yield();
  }
  if (!lock.owns_lock()) lock.lock();
  return poll_locked(close_open, quiet);
}

CUresult Ordering::poll_locked(bool close_open, BlockList* quiet) {
  CUresult result = CUDA_SUCCESS;
  if (close_open) result = record_locked(kAnything);
  const CUresult looked = look_at_fences_locked();
  BlockList taken = take_quiet_locked();
  quiet->splice(taken);
  return looked == CUDA_SUCCESS ? result : looked;
}

// Fences complete in the order of their records: the first one that has not ends the look.
CUresult Ordering::look_at_fences_locked() {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  CUresult result = CUDA_SUCCESS;
  EpochNumber complete = 0;
  for (Epoch& epoch : closed_) {
    if (epoch.fence == nullptr) continue;
    const CUresult state = query_locked(epoch);
    if (state != CUDA_SUCCESS) {
      if (state != CUDA_ERROR_NOT_READY) result = state;
      break;
    }
    complete = epoch.number;
  }
  harvest_locked(complete);
  return result;
}

BlockList Ordering::take_quiet() {
  const std::lock_guard<SharedMutex> lock(mutex_);
  return take_quiet_locked();
}

BlockList Ordering::take_quiet_locked() {
  BlockList taken;
  taken.splice(quiet_);
  held_blocks_.fetch_sub(taken.count, std::memory_order_relaxed);
  return taken;
}

EpochNumber Ordering::begin_synchronize() {
  const std::lock_guard<SharedMutex> lock(mutex_);
  close_locked(false, kAnything);
  return open_.number() - 1;
}

void Ordering::end_synchronize(EpochNumber before) {
  const std::lock_guard<SharedMutex> lock(mutex_);
  if (CUPOOL_MUTATED("harvest-later-frees")) {
    close_locked(false, kAnything);
    before = open_.number() - 1;
  }
  harvest_locked(before);
}

void Ordering::abandon() {
  const std::lock_guard<SharedMutex> lock(mutex_);
  {
    const std::lock_guard<SharedSpinLock> open_lock(open_mutex_);
    open_blocks_ = BlockList{};
    const EpochNumber last = open_.close().number;
    closed_bytes_.store(0, std::memory_order_relaxed);
    quiet_up_to_.store(last, std::memory_order_release);
  }
  quiet_ = BlockList{};
  held_blocks_.store(0, std::memory_order_relaxed);
  spare_events_.clear();
  barrier_ = Barrier{};
  captures_in_process_.fetch_sub(static_cast<unsigned>(captures_.size()),
                                 std::memory_order_acq_rel);
  captures_.clear();
  ++lives_;
  // An epoch that a thread still waits for keeps its place; the thread finds the blocks gone.
  for (Epoch& epoch : closed_) {
    epoch.blocks = BlockList{};
    epoch.bytes = 0;
  }
  closed_.erase(std::remove_if(closed_.begin(), closed_.end(),
                               [](const Epoch& epoch) { return epoch.waiters == 0; }),
                closed_.end());
}

// False: the open epoch holds less.
bool Ordering::take_open(const Batch& least, Epoch* epoch) {
  const std::lock_guard<SharedSpinLock> lock(open_mutex_);
  if (!open_.holds(least.blocks, least.bytes)) return false;
  const OpenEpoch::Closed closed = open_.close();
  closed_bytes_.fetch_add(closed.bytes, std::memory_order_relaxed);
  epoch->number = closed.number;
  epoch->bytes = closed.bytes;
  epoch->frees = closed.frees;
  epoch->blocks.splice(open_blocks_);
  return true;
}

// What could not be closed waits with what was freed meanwhile.
void Ordering::reopen(Epoch& epoch) {
  const std::lock_guard<SharedSpinLock> lock(open_mutex_);
  epoch.blocks.splice(open_blocks_);
  open_blocks_.splice(epoch.blocks);
  closed_bytes_.fetch_sub(epoch.bytes, std::memory_order_relaxed);
  open_.join(epoch.bytes, epoch.frees);
}

// Closes the open epoch if it holds `least`. With a fence it may be empty: that also covers older
// epochs that were closed without one. It is closed before the record: who joins later needs a
// later fence.
CUresult Ordering::close_locked(bool with_fence, const Batch& least) {
  CUevent fence = nullptr;
  CUresult result = with_fence ? create_event(&fence) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) return result;
  Epoch epoch;
  if (!take_open(least, &epoch)) {
    if (with_fence) spare_events_.push_back(fence);
    return CUDA_SUCCESS;
  }
  if (with_fence) result = driver_.cuCtxRecordEvent(context_, fence);
  if (result != CUDA_SUCCESS) {
    spare_events_.push_back(fence);
    reopen(epoch);
    return result;
  }
  if (with_fence) stats_.add(Counter::fences_total, 1);
  epoch.fence = fence;
  closed_.push_back(epoch);
  return CUDA_SUCCESS;
}

CUresult Ordering::create_event(CUevent* event) {
  if (!spare_events_.empty()) {
    *event = spare_events_.back();
    spare_events_.pop_back();
    return CUDA_SUCCESS;
  }
  const cuda::ContextScope scope(driver_, context_);
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  return driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

Ordering::Epoch* Ordering::first_fenced_from_locked(EpochNumber epoch) {
  for (Epoch& closed : closed_) {
    if (closed.number >= epoch && closed.fence != nullptr) return &closed;
  }
  return nullptr;
}

void Ordering::make_quiet_locked(BlockList& blocks) {
  if (blocks.empty()) return;
  for (Block* block = blocks.head; block != nullptr; block = block->next) {
    block->state.store(BlockState::quiet, std::memory_order_relaxed);
  }
  quiet_.splice(blocks);
}

// Everything up to `up_to` is quiet. Epochs stay in the queue while a thread waits on their fence.
void Ordering::harvest_locked(EpochNumber up_to) {
  if (up_to > quiet_up_to()) quiet_up_to_.store(up_to, std::memory_order_release);
  for (Epoch& epoch : closed_) {
    if (epoch.number > up_to) break;
    closed_bytes_.fetch_sub(epoch.bytes, std::memory_order_relaxed);
    epoch.bytes = 0;
    make_quiet_locked(epoch.blocks);
  }
  while (!closed_.empty() && closed_.front().number <= up_to && closed_.front().waiters == 0) {
    if (closed_.front().fence != nullptr) spare_events_.push_back(closed_.front().fence);
    closed_.pop_front();
  }
}

// Closes the open epoch with a fence if that is possible now. Success without a fence: a stream is
// capturing, or events of the context are not to be had (can_record_ tells).
CUresult Ordering::record_locked(const Batch& least) {
  const bool capturing = capturing_locked() && !CUPOOL_MUTATED("record-in-capture");
  if (!can_record_ || capturing) return CUDA_SUCCESS;
  const CUresult result = close_locked(true, least);
  if (result == CUDA_SUCCESS || cuda::is_capture_refusal(result)) return CUDA_SUCCESS;
  if (result == CUDA_ERROR_DEINITIALIZED || cuda::is_sticky(result)) return result;
  // A driver that shuts down meanwhile, in another thread's exit, may say something else first.
  CUcontext current = nullptr;
  const CUresult driver = driver_.cuCtxGetCurrent(&current);
  if (driver == CUDA_ERROR_DEINITIALIZED) return driver;
  // In a host function of the program nothing is answered; the next free elsewhere records.
  if (result == CUDA_ERROR_NOT_PERMITTED || driver == CUDA_ERROR_NOT_PERMITTED) return CUDA_SUCCESS;
  can_record_ = false;
  CUPOOL_WARN_ONCE(
      "cuCtxRecordEvent failed with error %d; frees synchronise the context instead (slower, still "
      "right)",
      static_cast<int>(result));
  return CUDA_SUCCESS;
}

CUresult Ordering::query_locked(Epoch& epoch) {
  if (epoch.seen_complete) return CUDA_SUCCESS;
  stats_.add(Counter::fence_queries_total, 1);
  CUresult state = driver_.cuEventQuery(epoch.fence);
  if (CUPOOL_MUTATED("reuse-before-complete") && state == CUDA_ERROR_NOT_READY) {
    state = CUDA_SUCCESS;
  }
  if (state == CUDA_SUCCESS) epoch.seen_complete = true;
  return state;
}

}  // namespace cupool::core
