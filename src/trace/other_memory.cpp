// SPDX-License-Identifier: Apache-2.0
// One table under one lock: these calls take microseconds in the driver, and are watched on
// request.
#include "trace/other_memory.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "util/log.h"

namespace cupool::trace {

namespace {

struct Table {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, OtherMemory> live;
};
std::atomic<Table*> table{nullptr};

// Before the memory is noted: a free of another thread may follow at once.
bool remember(Table& into, const OtherMemory& other) {
  try {
    const std::lock_guard<std::mutex> lock(into.mutex);
    into.live.insert_or_assign(other.memory.address, other);
    return true;
  } catch (...) {
    CUPOOL_WARN_ONCE(
        "out of host memory: traces and leaks lack memory that cupool keeps no record of");
    return false;
  }
}

}  // namespace

void start_other_kinds() {
  table.store(new Table, std::memory_order_release);
  add_watcher(kOtherKinds);
}

void note_other_allocation(const Memory& memory, const void* context,
                           std::uint64_t start_ns) noexcept {
  Table* const now = table.load(std::memory_order_acquire);
  if (now != nullptr && remember(*now, {memory, context})) note_allocation(memory, start_ns);
}

std::optional<OtherMemory> note_other_free(std::uint64_t address) noexcept {
  Table* const now = table.load(std::memory_order_acquire);
  if (now == nullptr) return std::nullopt;
  OtherMemory freed;
  {
    const std::lock_guard<std::mutex> lock(now->mutex);
    const auto found = now->live.find(address);
    if (found == now->live.end()) return std::nullopt;
    freed = found->second;
    now->live.erase(found);
  }
  note_free(freed.memory);
  return freed;
}

void note_other_free_done(const OtherMemory& freed, std::uint64_t start_ns, bool refused) noexcept {
  Table* const now = table.load(std::memory_order_acquire);
  if (refused && now != nullptr) remember(*now, freed);
  note_free_done(freed.memory, start_ns, refused);
}

void note_others_lost(const void* context) noexcept {
  Table* const now = table.load(std::memory_order_acquire);
  if (now == nullptr) return;
  const std::lock_guard<std::mutex> lock(now->mutex);
  for (auto each = now->live.begin(); each != now->live.end();) {
    if (each->second.context != context) {
      ++each;
      continue;
    }
    note_lost(each->second.memory);
    each = now->live.erase(each);
  }
}

}  // namespace cupool::trace
