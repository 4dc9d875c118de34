// SPDX-License-Identifier: Apache-2.0
// The table, and the driver's word on a kernel's parameters: 24 ns for each (measured). Nothing of
// it is kept, since a function's handle may name another one once its module is gone.
#include "engine/reclaim/pinned_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "util/lock_order.h"
#include "util/mutation.h"

namespace cupool::engine {

std::atomic<bool> PinnedMemory::over_{false};
std::atomic<bool> PinnedMemory::unknown_{false};
std::atomic<std::size_t> PinnedMemory::count_{0};
std::atomic<std::uintptr_t> PinnedMemory::lowest_{UINTPTR_MAX};
std::atomic<std::uintptr_t> PinnedMemory::highest_{0};

namespace {

struct Range {
  std::uintptr_t end = 0;  ///< behind the last byte
  std::uint64_t number = 0;
};

util::Ranked<util::LockRank::pinned_memory> mutex;
std::uint64_t last_number = 0;
using Ranges = std::map<std::uintptr_t, Range>;
// By the first byte. Never destroyed, since exit handlers launch too. Not on the heap: asked also
// where that is exhausted.
Ranges& ranges() {
  alignas(Ranges) static unsigned char place[sizeof(Ranges)];
  static auto& all = *new (place) Ranges;
  return all;
}

// Memory that goes with its context, or by a route that cupool does not see, stays in the table. An
// older range must not hide a part of a newer one.
void cut_out_locked(std::uintptr_t first, std::uintptr_t end) {
  auto& all = ranges();
  auto next = all.lower_bound(first);
  while (next != all.end() && next->first < end) next = all.erase(next);
  if (next == all.begin()) return;
  std::uintptr_t& end_before = std::prev(next)->second.end;
  end_before = std::min(end_before, first);
}

}  // namespace

void PinnedMemory::publish_locked() {
  count_.store(ranges().size() + (unknown_ ? 1 : 0));
}

std::uint64_t PinnedMemory::add(const void* start, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  if (start == nullptr || bytes == 0 || over_.load()) return 0;
  const std::uintptr_t end = first + bytes;
  const std::lock_guard lock(mutex);
  cut_out_locked(first, end);
  try {
    ranges()[first] = Range{end, ++last_number};
  } catch (const std::bad_alloc&) {
    unknown_ = true;
    publish_locked();
    return 0;
  }
  if (first < lowest_.load()) lowest_.store(first);
  if (end > highest_.load()) highest_.store(end);
  publish_locked();
  return last_number;
}

bool PinnedMemory::is_elsewhere() {
  if ((unknown_.load() && any()) || over_.load()) return false;
  const std::lock_guard lock(mutex);
  const bool is_new = !unknown_.exchange(true);
  publish_locked();
  return is_new;
}

std::uint64_t PinnedMemory::number_of(const void* start) {
  if (!any()) return 0;
  const std::lock_guard lock(mutex);
  const auto found = ranges().find(reinterpret_cast<std::uintptr_t>(start));
  return found == ranges().end() ? 0 : found->second.number;
}

void PinnedMemory::remove(const void* start, std::uint64_t number) {
  if (number == 0 || !any()) return;
  const std::lock_guard lock(mutex);
  const auto found = ranges().find(reinterpret_cast<std::uintptr_t>(start));
  if (found == ranges().end() || found->second.number != number) return;
  ranges().erase(found);
  publish_locked();
}

void PinnedMemory::was_asked_for(const void* start, std::uint64_t number, bool taken) {
  if (taken || CUPOOL_MUTATED("forgets-memory-that-stays")) remove(start, number);
}

void PinnedMemory::reset() {
  const std::lock_guard lock(mutex);
  ranges().clear();
  over_ = unknown_ = false;
  lowest_ = UINTPTR_MAX;
  highest_ = 0;
  publish_locked();
}

void PinnedMemory::add_registered(const void* start, std::size_t bytes) {
  if (!CUPOOL_MUTATED("forgets-registered-memory")) add(start, bytes);
}

void PinnedMemory::end_without_lock() {
  over_ = true;
  unknown_ = false;
  count_ = 0;
  lowest_ = UINTPTR_MAX;
  highest_ = 0;
}

std::uintptr_t PinnedMemory::start_of(std::uintptr_t address, Count count) {
  const std::uintptr_t beyond = count == Count::the_end_too ? 1 : 0;
  if (address < lowest_.load(std::memory_order_relaxed) ||
      address >= highest_.load(std::memory_order_relaxed) + beyond) {
    return 0;
  }
  const std::lock_guard lock(mutex);
  const auto next = ranges().upper_bound(address);
  if (next == ranges().begin() || address >= std::prev(next)->second.end + beyond) return 0;
  return std::prev(next)->first;
}

// A kernel that goes backwards gets the end.
bool PinnedMemory::holds_word_of(const void* bytes, std::size_t size) {
  const auto* const at = static_cast<const unsigned char*>(bytes);
  std::uintptr_t word = 0;
  for (std::size_t i = 0; i + sizeof word <= size; i += sizeof word) {
    std::memcpy(&word, at + i, sizeof word);
    if (start_of(word, Count::the_end_too) != 0) return true;
  }
  return false;
}

bool PinnedMemory::is_argument(const cuda::Driver& driver, CUfunction function, void** parameters,
                               void** extra) {
  if (CUPOOL_MUTATED("ignores-pinned-arguments")) return false;
  if (unknown_) return true;
  const void* packed = nullptr;
  const std::size_t* size_of_packed = nullptr;
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = extra[1];
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size_of_packed = static_cast<const std::size_t*>(extra[1]);
    }
  }
  const bool is_packed = packed != nullptr && size_of_packed != nullptr;
  if (is_packed && holds_word_of(packed, *size_of_packed)) return true;
  if (parameters == nullptr || driver.cuFuncGetParamInfo == nullptr) return false;
  std::size_t offset = 0;
  std::size_t size = 0;
  // A launch may name a kernel of a library instead of a function.
  const bool is_kernel = driver.cuFuncGetParamInfo(function, 0, &offset, &size) != CUDA_SUCCESS &&
                         driver.cuKernelGetParamInfo != nullptr;
  const auto next = [&](std::size_t i) {
    return is_kernel ? driver.cuKernelGetParamInfo(function, i, &offset, &size)
                     : driver.cuFuncGetParamInfo(function, i, &offset, &size);
  };
  for (std::size_t i = 0; next(i) == CUDA_SUCCESS; ++i) {
    if (parameters[i] != nullptr && holds_word_of(parameters[i], size)) return true;
  }
  return false;
}

}  // namespace cupool::engine
