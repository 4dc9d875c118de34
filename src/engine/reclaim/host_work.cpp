// SPDX-License-Identifier: Apache-2.0
// Events behind copies and callbacks, one for each stream with such work.
#include "engine/reclaim/host_work.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/mutation.h"

namespace cupool::engine {
namespace {

constexpr std::size_t kMostIdle = 64;  // events kept beyond the pending ones

std::atomic<std::uint64_t> threads_seen{0};
thread_local std::uint64_t own_id;

// A counter, not the address of a thread-local object: another thread may get that address while
// copies of the ended thread are pending.
std::uint64_t this_thread() {
  if (own_id == 0) own_id = threads_seen.fetch_add(1, std::memory_order_relaxed) + 1;
  return own_id;
}

}  // namespace

HostWork::Key HostWork::key_of(CUstream stream) {
  return {stream, stream == CU_STREAM_PER_THREAD ? this_thread() : 0};
}

// Recorded without the lock: the driver waits for the GPU in a record when its queue is full (I4).
// Two threads may record on a stream at once; the later record covers both copies.
void HostWork::submitted(CUstream stream) {
  Position entry;
  CUevent event = nullptr;
  if (!begin_record(stream, &entry, &event)) return submitted_unseen();
  const CUresult result = driver_.cuEventRecord(event, stream);
  const std::lock_guard lock(mutex_);
  if (result != CUDA_SUCCESS) {
    submitted_unseen();
  } else if (entry->event != nullptr) {
    entry->sequence = next_sequence_++;
    if (!entry->pending) {
      entry->first = entry->sequence;
      entry->pending = true;
      pending_.fetch_add(1, std::memory_order_acq_rel);
    }
  }
  let_go_locked(entry);
}

// False: no event to record.
bool HostWork::begin_record(CUstream stream, Position* entry, CUevent* event) {
  constexpr std::uint64_t kLookEvery = 8;  // records, on streams that already have an event
  const Key key = key_of(stream);
  const std::lock_guard lock(mutex_);
  try {
    *entry = entry_for_locked(key);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (*entry == idle_.end()) return false;
  ++(*entry)->users;
  if ((*entry)->idle) active_.splice(active_.end(), idle_, *entry);
  (*entry)->idle = false;
  *event = (*entry)->event;
  if (active_.size() > kMostIdle && next_sequence_ % kLookEvery == 0) look_at_oldest_locked();
  return true;
}

void HostWork::destroys(CUstream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = by_stream_.find({stream, 0});
  if (found == by_stream_.end()) return;
  const Position entry = found->second;
  forget_key_locked(*entry);
  if (entry->users == 0) settle_locked(entry);
}

HostWork::Mark HostWork::begin_wait() {
  Mark mark;
  mark.unseen = unseen_.load(std::memory_order_acquire);
  if (!maybe_pending()) return mark;
  const std::lock_guard lock(mutex_);
  mark.sequence = next_sequence_;
  return mark;
}

// Records with a sequence below `before` are complete.
void HostWork::done_locked(Entry& entry, std::uint64_t before) {
  if (!entry.pending) return;
  if (entry.sequence >= before) {
    entry.first = std::max(entry.first, before);
    return;
  }
  entry.pending = false;
  pending_.fetch_sub(1, std::memory_order_acq_rel);
}

void HostWork::end_context_wait(const Mark& before) {
  std::uint64_t covered = covered_.load(std::memory_order_relaxed);
  while (covered < before.unseen &&
         !covered_.compare_exchange_weak(covered, before.unseen, std::memory_order_acq_rel)) {
  }
  if (before.sequence == 0) return;
  const std::lock_guard lock(mutex_);
  for (Position next = active_.begin(); next != active_.end();) {
    const Position entry = next++;
    done_locked(*entry, before.sequence);
    if (entry->users == 0) settle_locked(entry);
  }
}

void HostWork::end_stream_wait(CUstream stream, const Mark& before) {
  if (CUPOOL_MUTATED("stream-wait-covers-all")) return end_context_wait(before);
  if (before.sequence == 0) return;
  const Key key = key_of(stream);
  const std::lock_guard lock(mutex_);
  const auto found = by_stream_.find(key);
  if (found == by_stream_.end()) return;
  const Position entry = found->second;
  done_locked(*entry, before.sequence);
  if (entry->users == 0) settle_locked(entry);
}

WaitResult HostWork::wait() {
  WaitResult result;
  std::unique_lock lock(mutex_);
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::uint64_t newest = next_sequence_;
  for (Position next = active_.begin(); next != active_.end();) {
    const Position entry = next++;
    if (!entry->pending || entry->first >= newest) continue;
    const CUevent event = entry->event;
    const std::uint64_t asked = next_sequence_;
    ++entry->users;
    CUresult answer = driver_.cuEventQuery(event);
    if (answer == CUDA_ERROR_NOT_READY) {
      if (!result.waited) detach_locked(newest);
      result.waited = true;
      lock.unlock();
      answer = cuda::insist([&] { return driver_.cuEventSynchronize(event); });
      lock.lock();
    }
    if (answer == CUDA_SUCCESS) done_locked(*entry, asked);
    next = std::next(entry);
    let_go_locked(entry);
    if (answer != CUDA_SUCCESS) return {WaitResult::Outcome::failed, result.waited, answer};
  }
  return result;
}

// What is submitted during a wait gets another event: it may wait for what comes after the wait.
void HostWork::detach_locked(std::uint64_t before) {
  for (Entry& entry : active_) {
    if (entry.pending && entry.first < before) forget_key_locked(entry);
  }
}

void HostWork::abandon() {
  const std::lock_guard lock(mutex_);
  by_stream_.clear();
  idle_.clear();
  for (Entry& entry : active_) {
    entry.key = Key{};
    entry.event = nullptr;
    entry.pending = false;
  }
  active_.remove_if([](const Entry& entry) { return entry.users == 0; });
  pending_.store(0, std::memory_order_release);
  covered_.store(unseen_.load(std::memory_order_acquire), std::memory_order_release);
}

// The entry of a stream, or an unused one for it. idle_.end(): no event.
HostWork::Position HostWork::entry_for_locked(const Key& key) {
  const auto found = by_stream_.find(key);
  if (found != by_stream_.end()) return found->second;
  const Position entry = unused_locked();
  if (entry == idle_.end()) return entry;
  by_stream_.emplace(key, entry);
  entry->key = key;
  return entry;
}

// A program that creates streams continuously and never frees would have an event for each. So each
// new stream queries two other entries, which is more than it makes active, and the number of idle
// entries is limited.
HostWork::Position HostWork::unused_locked() {
  look_at_oldest_locked();
  const bool enough = idle_.size() >= kMostIdle;
  if (idle_.empty() || (idle_.front().key.stream != nullptr && !enough)) {
    idle_.emplace_front();
    idle_.front().idle = true;
    if (create_event(&idle_.front().event) != CUDA_SUCCESS) {
      idle_.pop_front();
      return idle_.end();
    }
  }
  forget_key_locked(idle_.front());
  return idle_.begin();
}

void HostWork::look_at_oldest_locked() {
  constexpr int kLooks = 2;
  constexpr int kSteps = 16;  // including entries in use, which stay in their place
  if (active_.empty() || CUPOOL_MUTATED("keeps-an-event-for-each-copy")) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  Position next = active_.begin();
  for (int step = 0, looks = 0; step < kSteps && looks < kLooks && next != active_.end(); ++step) {
    const Position entry = next++;
    if (entry->users != 0) continue;
    ++looks;
    if (driver_.cuEventQuery(entry->event) == CUDA_SUCCESS ||
        CUPOOL_MUTATED("forgets-pending-copies")) {
      done_locked(*entry, next_sequence_);
      settle_locked(entry);
    } else {
      active_.splice(active_.end(), active_, entry);
    }
  }
}

void HostWork::forget_key_locked(Entry& entry) {
  if (entry.key.stream != nullptr) by_stream_.erase(entry.key);
  entry.key = Key{};
}

void HostWork::let_go_locked(Position entry) {
  if (--entry->users == 0) settle_locked(entry);
}

// Puts an entry without users into its list. Idle events beyond kMostIdle are destroyed.
void HostWork::settle_locked(Position entry) {
  if (entry->pending) return;
  Entries& from = entry->idle ? idle_ : active_;
  if (entry->event == nullptr) {
    from.erase(entry);
    return;
  }
  const bool known = entry->key.stream != nullptr;
  idle_.splice(known ? idle_.end() : idle_.begin(), from, entry);
  entry->idle = true;
  if (idle_.size() <= kMostIdle) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  forget_key_locked(idle_.front());
  driver_.cuEventDestroy_v2(idle_.front().event);
  idle_.pop_front();
}

CUresult HostWork::create_event(CUevent* event) {
  const cuda::ContextScope scope(driver_, context_);
  if (!scope.ok()) return scope.result_of_context();
  return driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

}  // namespace cupool::engine
