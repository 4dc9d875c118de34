// Events behind copies and callbacks, one for each stream that has carried any.
#include "core/host_work.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "util/mutation.h"

namespace cupool::core {
namespace {

std::atomic<std::uint64_t> threads_seen{0};
thread_local std::uint64_t own_id;

// Not the address of something thread-local: that of an ended thread may be used again while its
// copies are still pending.
std::uint64_t this_thread() {
  if (own_id == 0) own_id = threads_seen.fetch_add(1, std::memory_order_relaxed) + 1;
  return own_id;
}

}  // namespace

std::uint64_t HostWork::thread_of(CUstream stream) {
  return stream == CU_STREAM_PER_THREAD ? this_thread() : 0;
}

void HostWork::submitted(CUstream stream) {
  const std::uint64_t thread = thread_of(stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* entry = entry_for_locked(stream, thread);
  if (entry->event == nullptr && create_event(&entry->event) != CUDA_SUCCESS) {
    submitted_unseen();
    return;
  }
  // A later record on the same stream covers the earlier ones.
  if (driver_.cuEventRecord(entry->event, stream) != CUDA_SUCCESS) {
    submitted_unseen();
    return;
  }
  entry->sequence = next_sequence_++;
  if (!entry->pending) {
    entry->first = entry->sequence;
    entry->pending = true;
    pending_.fetch_add(1, std::memory_order_acq_rel);
  }
}

void HostWork::stream_destroyed(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.stream == stream) entry.stream = nullptr;
  }
}

HostWork::Mark HostWork::begin_wait() {
  Mark mark;
  mark.unseen = unseen_.load(std::memory_order_acquire);
  if (!maybe_pending()) return mark;
  const std::lock_guard<std::mutex> lock(mutex_);
  mark.sequence = next_sequence_;
  return mark;
}

// Records numbered before `before` are complete.
void HostWork::done_locked(Entry& entry, std::uint64_t before) {
  if (!entry.pending || entry.sequence >= before) return;
  entry.pending = false;
  pending_.fetch_sub(1, std::memory_order_acq_rel);
}

void HostWork::end_context_wait(const Mark& before) {
  std::uint64_t covered = covered_.load(std::memory_order_relaxed);
  while (covered < before.unseen &&
         !covered_.compare_exchange_weak(covered, before.unseen, std::memory_order_acq_rel)) {
  }
  if (before.sequence == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& entry : entries_) done_locked(entry, before.sequence);
}

void HostWork::end_stream_wait(CUstream stream, const Mark& before) {
  if (before.sequence == 0) return;
  const std::uint64_t thread = thread_of(stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& entry : entries_) {
    const bool same = entry.stream == stream && entry.thread == thread;
    if (same || CUPOOL_MUTATED("stream-wait-covers-all")) done_locked(entry, before.sequence);
  }
}

CUresult HostWork::wait(bool* waited) {
  *waited = false;
  std::unique_lock<std::mutex> lock(mutex_);
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::uint64_t newest = next_sequence_;
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    // Entries are never erased, so indices hold while the lock is given up.
    if (!entries_[index].pending || entries_[index].first >= newest) continue;
    const CUevent event = entries_[index].event;
    const std::uint64_t sequence = entries_[index].sequence;
    CUresult result = driver_.cuEventQuery(event);
    if (result == CUDA_ERROR_NOT_READY) {
      *waited = true;
      lock.unlock();
      result = driver_.cuEventSynchronize(event);
      lock.lock();
    }
    if (result != CUDA_SUCCESS) return result;
    done_locked(entries_[index], sequence + 1);
  }
  return CUDA_SUCCESS;
}

void HostWork::abandon() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& entry : entries_) entry = Entry{};
  pending_.store(0, std::memory_order_release);
  covered_.store(unseen_.load(std::memory_order_acquire), std::memory_order_release);
}

HostWork::Entry* HostWork::entry_for_locked(CUstream stream, std::uint64_t thread) {
  Entry* spare = nullptr;
  for (Entry& entry : entries_) {
    if (entry.stream == stream && entry.thread == thread) return &entry;
    // Threads end unseen: what is not pending of a per-thread stream may be taken over.
    if (!entry.pending && (entry.stream == nullptr || entry.thread != 0)) spare = &entry;
  }
  if (spare == nullptr) spare = &entries_.emplace_back();
  spare->stream = stream;
  spare->thread = thread;
  return spare;
}

CUresult HostWork::create_event(CUevent* event) {
  const cuda::ContextScope scope(driver_, context_);
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  return driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

void HostReachable::add(Kind kind, std::uintptr_t address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& ranges = ranges_[static_cast<int>(kind)];
  const auto same = [&](const Range& range) { return range.address == address; };
  if (std::find_if(ranges.begin(), ranges.end(), same) != ranges.end()) return;
  ranges.push_back({address, bytes});
  counts_[static_cast<int>(kind)].store(ranges.size(), std::memory_order_relaxed);
}

void HostReachable::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& ranges : ranges_) ranges.clear();
  for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
}

void HostReachable::remove(Kind kind, std::uintptr_t address) {
  if (!any(kind)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& ranges = ranges_[static_cast<int>(kind)];
  const auto gone = [&](const Range& range) { return range.address == address; };
  ranges.erase(std::remove_if(ranges.begin(), ranges.end(), gone), ranges.end());
  counts_[static_cast<int>(kind)].store(ranges.size(), std::memory_order_relaxed);
}

std::uint64_t HostReachable::bytes(Kind kind) const {
  std::uint64_t sum = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Range& range : ranges_[static_cast<int>(kind)]) sum += range.bytes;
  return sum;
}

}  // namespace cupool::core
