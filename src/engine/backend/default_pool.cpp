// SPDX-License-Identifier: Apache-2.0
// Who owns the pool's threshold is decided under its lock. Its memory is trimmed without.
#include "engine/backend/default_pool.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/backend/pool_attributes.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

namespace {

// Pools that the program has set or trimmed, or null. Without a lock: a forked child may come here.
// A program with more of them has its default pools left alone.
constexpr std::size_t kMostClaimed = 64;
std::atomic<CUmemoryPool> claimed[kMostClaimed];
std::atomic<bool> too_many_claimed{false};

}  // namespace

void DefaultPool::claim(CUmemoryPool pool) {
  for (std::atomic<CUmemoryPool>& each : claimed) {
    CUmemoryPool found = each.load();
    if (found == nullptr && each.compare_exchange_strong(found, pool)) return;
    if (found == pool) return;
  }
  too_many_claimed.store(true);
}

bool DefaultPool::is_claimed(CUmemoryPool pool) const {
  return too_many_claimed.load() ||
         std::any_of(std::begin(claimed), std::end(claimed),
                     [&](const auto& each) { return each.load() == pool; });
}

// A refusal may pass, so each call is made twice.
bool DefaultPool::get(CUmemoryPool pool, CUmemPool_attribute attribute,
                      std::uint64_t* value) const {
  *value = 0;
  return add_attribute(driver_, pool, attribute, value);
}

bool DefaultPool::set(CUmemoryPool pool, CUmemPool_attribute attribute, std::uint64_t value) const {
  cuuint64_t wanted = value;
  return driver_.cuMemPoolSetAttribute(pool, attribute, &wanted) == CUDA_SUCCESS ||
         driver_.cuMemPoolSetAttribute(pool, attribute, &wanted) == CUDA_SUCCESS;
}

bool DefaultPool::keep(CUmemoryPool from) {
  CUmemoryPool current = from;
  if (current == nullptr && driver_.cuDeviceGetMemPool(&current, ordinal_) != CUDA_SUCCESS) {
    return false;
  }
  const CUmemoryPool known = handle();
  if (known != nullptr && known != current) return false;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::lock_guard lock(mutex_);
  return keep_locked(current);
}

// The handle is published before the claims are read, and claim() is called before the handle is
// read: either this thread sees the claim, or the program's one waits for the lock in leave().
bool DefaultPool::keep_locked(CUmemoryPool from) {
  if (state_.load(std::memory_order_relaxed) != State::untouched) return false;
  CUmemoryPool pool = nullptr;
  if (driver_.cuDeviceGetDefaultMemPool(&pool, ordinal_) != CUDA_SUCCESS) return false;
  handle_.store(pool);
  if (pool != from) return false;
  std::uint64_t threshold = 0;
  if (is_claimed(pool) || !get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) ||
      threshold != kThresholdOfDriver ||
      !set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, limits_.release_threshold)) {
    state_.store(State::left);
    return false;
  }
  if (!get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold_)) {
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kThresholdOfDriver);
    state_.store(State::left);
    return false;
  }
  state_.store(State::kept, std::memory_order_release);
  return true;
}

void DefaultPool::leave() {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  CUmemoryPool kept = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!is_kept() || CUPOOL_MUTATED("keeps-the-programs-pool")) return state_.store(State::left);
    kept = handle();
    if (!set(kept, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kThresholdOfDriver)) {
      CUPOOL_LOG(info,
                 "device %d: the driver refused to set its default pool's release threshold back; "
                 "CUPOOL_ASYNC=off leaves it alone",
                 ordinal_);
    }
    // Whoever sees this state reads a threshold that is no longer cupool's.
    state_.store(State::left);
  }
  driver_.cuMemPoolTrimTo(kept, 0);
}

// Someone may have set the threshold by a route that cupool does not see.
bool DefaultPool::is_still_kept() {
  if (!is_kept()) return false;
  std::uint64_t threshold = 0;
  if (!get(handle(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold)) return true;
  if (threshold == threshold_) return true;
  const std::lock_guard lock(mutex_);
  state_.store(State::left);
  return false;
}

bool DefaultPool::try_trim_to(std::uint64_t keep_bytes) const {
  return driver_.cuMemPoolTrimTo(handle(), keep_bytes) == CUDA_SUCCESS ||
         driver_.cuMemPoolTrimTo(handle(), keep_bytes) == CUDA_SUCCESS;
}

std::uint64_t DefaultPool::trim_to(std::uint64_t keep_bytes) {
  const std::uint64_t before = reserved_bytes(driver_, handle());
  try_trim_to(keep_bytes);
  const std::uint64_t after = reserved_bytes(driver_, handle());
  return before - std::min(before, after);
}

std::uint64_t DefaultPool::trim() {
  if (!is_kept()) return 0;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  return is_still_kept() ? trim_to(0) : 0;
}

DefaultPoolFill DefaultPool::fill() const {
  if (!is_kept()) return {};
  const cuda::RelaxedCaptureScope relaxed(driver_);
  DefaultPoolFill now;
  if (!get(handle(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &now.reserved) ||
      !get(handle(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now.used)) {
    return {};
  }
  return now;
}

void DefaultPool::contexts_gone() {
  const CUmemoryPool known = handle();
  if (known == nullptr) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  CUmemoryPool now = nullptr;
  const auto ask = [&] { return driver_.cuDeviceGetDefaultMemPool(&now, ordinal_); };
  if ((ask() != CUDA_SUCCESS && ask() != CUDA_SUCCESS) || now == nullptr) {
    const std::lock_guard lock(mutex_);
    state_.store(State::left);
    return;
  }
  if (now != known) {
    const std::lock_guard lock(mutex_);
    return forget_locked(now);
  }
  if (is_kept() && is_still_kept() && !try_trim_to(0)) leave();
}

void DefaultPool::forget_locked(CUmemoryPool now) {
  handle_.store(now);
  high_of_program_ = high_of_step_ = 0;
  highs_.fill(kUnknown);
  needed_ = kUnknown;
  state_.store(State::untouched, std::memory_order_release);
}

// The most that was in use since the driver's mark was reset. Its value just after a reset is not
// documented, so what is in use now counts too.
std::uint64_t DefaultPool::read_high() const {
  std::uint64_t high = 0;
  std::uint64_t now = 0;
  const bool known = get(handle(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high) &&
                     get(handle(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now);
  return known ? std::max(high, now) : kUnknown;
}

// The mark so far contains them, and from its reset on it does not.
void DefaultPool::unneeded_released(std::uint64_t bytes) {
  if (bytes == 0 || !is_kept()) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::lock_guard lock(mutex_);
  if (!is_kept()) return;
  const std::uint64_t high = read_high();
  if (high == kUnknown || !set(handle(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)) return;
  high_of_program_ = std::max(high_of_program_, high);
  high_of_step_ = std::max(high_of_step_, high);
  high_of_step_ -= std::min(high_of_step_, bytes);
  for (std::uint64_t& each : highs_) {
    if (each != kUnknown) each -= std::min(each, bytes);
  }
}

// If the driver refuses the reset, the mark is higher than what the step needed: more stays.
void DefaultPool::end_step() {
  if (!is_kept()) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  if (!is_still_kept()) return;
  const std::lock_guard lock(mutex_);
  if (!is_kept()) return;  // forgotten meanwhile
  std::uint64_t high = read_high();
  const auto note = [&] {
    if (high != kUnknown && !CUPOOL_MUTATED("forgets-the-programs-high")) {
      high_of_program_ = std::max(high_of_program_, high);
    }
  };
  note();
  if (high != kUnknown && set(handle(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)) {
    // What came between the query and the reset is in use now.
    high = std::max(high, used_bytes(driver_, handle()));
    note();
  }
  step_ = (step_ + 1) % highs_.size();
  highs_[step_] = CUPOOL_MUTATED("decays-to-what-is-in-use") ? used_bytes(driver_, handle())
                                                             : std::max(high, high_of_step_);
  high_of_step_ = 0;
  needed_ = *std::max_element(highs_.begin(), highs_.end());
}

PoolDecay::Trimmed DefaultPool::trim_unneeded(std::uint64_t bytes) {
  if (needed_ == kUnknown || !is_kept()) return {};
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const std::uint64_t reserved = reserved_bytes(driver_, handle());
  PoolDecay::Trimmed trimmed;
  if (reserved > needed_) {
    const std::uint64_t gone = trim_to(std::max(needed_, reserved - std::min(reserved, bytes)));
    trimmed.any = gone != 0;
    trimmed.more = trimmed.any && reserved - gone > needed_;
  }
  // Less than a chunk, or fragments between blocks in use, stay until the next step.
  if (!trimmed.more) needed_ = kUnknown;
  return trimmed;
}

// No lock is held across the program's call. A state that changes meanwhile is that of a call of
// another thread, which may come before or after this one. end_step() notes what it resets before
// it does.
CUresult DefaultPool::get_attribute(CUmemPool_attribute attribute, void* value) {
  const State before = state_.load();
  const CUresult result = driver_.cuMemPoolGetAttribute(handle(), attribute, value);
  if (result != CUDA_SUCCESS || value == nullptr) return result;
  auto* const number = static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    const std::lock_guard lock(mutex_);
    *number = std::max<cuuint64_t>(*number, high_of_program_);
  }
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && !CUPOOL_MUTATED("tells-its-threshold")) {
    const std::lock_guard lock(mutex_);
    if (is_kept() || (before != State::left && *number == threshold_)) *number = kThresholdOfDriver;
  }
  return result;
}

CUresult DefaultPool::set_attribute(CUmemPool_attribute attribute, void* value) {
  if (attribute != CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    return driver_.cuMemPoolSetAttribute(handle(), attribute, value);
  }
  const std::lock_guard lock(mutex_);
  std::uint64_t high = 0;
  if (is_kept()) {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    high = read_high();
  }
  const CUresult result = driver_.cuMemPoolSetAttribute(handle(), attribute, value);
  if (result != CUDA_SUCCESS) return result;
  high_of_program_ = 0;
  high_of_step_ = std::max(high_of_step_, high);
  return result;
}

}  // namespace cupool::engine
