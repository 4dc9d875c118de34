// Tells each watcher what it wants to know.
#include "trace/watch.h"

#include "trace/leaks.h"
#include "trace/recorder.h"
#include "util/clock.h"

namespace cupool::trace {

namespace detail {
std::atomic<unsigned> watchers{0};
}

namespace {

bool is_asked_for(Watcher watcher) {
  return (detail::watchers.load(std::memory_order_relaxed) & watcher) != 0;
}

Event event_of(Action action, const Memory& memory) {
  Event event;
  event.action = action;
  event.address = memory.address;
  event.bytes = memory.bytes;
  event.device = memory.device;
  return event;
}

}  // namespace

void add_watcher(Watcher watcher) noexcept {
  detail::watchers.fetch_or(watcher, std::memory_order_relaxed);
}

void note_allocation(const Memory& memory, std::uint64_t start_ns) noexcept {
  if (is_asked_for(kTrace)) {
    Event event = event_of(Action::allocate, memory);
    event.duration_ns = util::now_ns() - start_ns;
    record(event);
  }
  if (is_asked_for(kLeaks)) leak_allocated(memory);
}

void note_allocation_failure(std::uint64_t bytes, std::uint64_t start_ns) noexcept {
  if (is_asked_for(kTrace)) {
    Event event = event_of(Action::allocate_failure, {0, bytes, -1});
    event.duration_ns = util::now_ns() - start_ns;
    record(event);
  }
}

void note_free(const Memory& memory) noexcept {
  if (is_asked_for(kTrace)) record(event_of(Action::free, memory));
  if (is_asked_for(kLeaks)) leak_freed(memory.address);
}

void note_free_done(const Memory& memory, std::uint64_t start_ns) noexcept {
  if (is_asked_for(kTrace) && wants_durations()) {
    Event event = event_of(Action::free_done, memory);
    event.duration_ns = util::now_ns() - start_ns;
    record(event);
  }
}

void note_lost(const Memory& memory) noexcept {
  if (is_asked_for(kTrace)) record(event_of(Action::free, memory));
  if (is_asked_for(kLeaks)) leak_freed(memory.address);
}

}  // namespace cupool::trace
