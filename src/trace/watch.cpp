// SPDX-License-Identifier: Apache-2.0
// Notifies each watcher.
#include "trace/watch.h"

#include "trace/leaks.h"
#include "trace/nvtx.h"
#include "trace/recorder.h"
#include "trace/sites.h"
#include "util/clock.h"

namespace cupool::trace {

namespace detail {
std::atomic<unsigned> watchers{0};
}

namespace {

Event event_of(Action action, const Memory& memory) {
  Event event;
  event.action = action;
  event.address = memory.address;
  event.bytes = memory.bytes;
  event.device = memory.device;
  event.kind = memory.kind;
  return event;
}

// RMM's format has no other kinds.
bool traces(MemoryKind kind) {
  return watching(kTrace) && (kind == MemoryKind::device || is_timeline());
}

bool marks(MemoryKind kind) {
  return kind == MemoryKind::device && watching(kNvtx);
}

bool samples(MemoryKind kind) {
  return kind == MemoryKind::device && watching(kSites);
}

void record_done(Action action, const Memory& memory, std::uint64_t start_ns) {
  Event event = event_of(action, memory);
  event.duration_ns = util::now_ns() - start_ns;
  record(event);
}

}  // namespace

void add_watcher(Watcher watcher) noexcept {
  detail::watchers.fetch_or(watcher, std::memory_order_relaxed);
}

void note_allocation(const Memory& memory, std::uint64_t start_ns) noexcept {
  if (traces(memory.kind)) record_done(Action::allocate, memory, start_ns);
  if (watching(kLeaks)) leak_allocated(memory);
  if (marks(memory.kind)) nvtx_changed(memory, true);
  if (samples(memory.kind)) site_allocated(memory);
}

void note_allocation_failure(std::uint64_t bytes, std::uint64_t start_ns,
                             MemoryKind kind) noexcept {
  if (traces(kind)) {
    record_done(Action::allocate_failure, {0, bytes, -1, kind}, start_ns);
  }
}

void note_free(const Memory& memory) noexcept {
  if (traces(memory.kind)) record(event_of(Action::free, memory));
  if (watching(kLeaks)) leak_freed(memory.address);
  if (marks(memory.kind)) nvtx_changed(memory, false);
  if (samples(memory.kind)) site_freed(memory.address);
}

// A refused free is undone for those who saw the block go.
void note_free_done(const Memory& memory, std::uint64_t start_ns, bool refused) noexcept {
  if (traces(memory.kind) && (refused || is_timeline())) {
    record_done(refused ? Action::free_refused : Action::free_done, memory, start_ns);
  }
  if (watching(kLeaks)) leak_free_done(memory.address, refused);
  if (refused && marks(memory.kind)) nvtx_changed(memory, true);
  if (samples(memory.kind)) site_free_done(memory.address, refused);
}

// Watchers see it as a free.
void note_lost(const Memory& memory) noexcept {
  note_free(memory);
}

CallRange::CallRange(Call call, std::uint64_t bytes) noexcept
    : active_(watching(kNvtx) &&
              (call == Call::malloc ? nvtx_begin_malloc(bytes) : nvtx_begin_free(bytes))) {}

CallRange::~CallRange() {
  if (active_) nvtx_end();
}

}  // namespace cupool::trace
