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

void note_live(const Memory& memory, std::uint64_t start_ns) {
  if (traces(memory.kind)) {
    Event event = event_of(Action::allocate, memory);
    event.duration_ns = util::now_ns() - start_ns;
    record(event);
  }
  if (watching(kLeaks)) leak_allocated(memory);
  if (marks(memory.kind)) nvtx_changed(memory, true);
}

}  // namespace

void add_watcher(Watcher watcher) noexcept {
  detail::watchers.fetch_or(watcher, std::memory_order_relaxed);
}

void note_allocation(const Memory& memory, std::uint64_t start_ns) noexcept {
  note_live(memory, start_ns);
  if (samples(memory.kind)) site_allocated(memory);
}

void note_allocation_failure(std::uint64_t bytes, std::uint64_t start_ns,
                             MemoryKind kind) noexcept {
  if (traces(kind)) {
    Event event = event_of(Action::allocate_failure, {0, bytes, -1, kind});
    event.duration_ns = util::now_ns() - start_ns;
    record(event);
  }
}

void note_free(const Memory& memory) noexcept {
  if (traces(memory.kind)) record(event_of(Action::free, memory));
  if (watching(kLeaks)) leak_freed(memory.address);
  if (marks(memory.kind)) nvtx_changed(memory, false);
  if (samples(memory.kind)) site_freed(memory.address);
}

// A refused free is an allocation of the block again for those who saw it go.
void note_free_done(const Memory& memory, std::uint64_t start_ns, bool refused) noexcept {
  if (watching(kTrace) && is_timeline()) {
    Event event = event_of(Action::free_done, memory);
    event.duration_ns = util::now_ns() - start_ns;
    record(event);
  }
  if (samples(memory.kind)) site_free_done(memory.address, refused);
  if (refused) note_live(memory, util::now_ns());
}

// Watchers see it as a free.
void note_lost(const Memory& memory) noexcept {
  note_free(memory);
}

CallRange::CallRange(Call call, std::uint64_t bytes) noexcept : active_(watching(kNvtx)) {
  if (!active_) return;
  call == Call::malloc ? nvtx_begin_malloc(bytes) : nvtx_begin_free(bytes);
}

CallRange::~CallRange() {
  if (active_) nvtx_end();
}

}  // namespace cupool::trace
