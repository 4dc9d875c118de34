// SPDX-License-Identifier: Apache-2.0
// One bounded list for each kind, so that frequent events do not displace those of another kind.
#include "stats/timeline.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "util/clock.h"

namespace cupool::stats {

namespace {

std::atomic<std::uint64_t> g_start_ns{0};

class EventList {
 public:
  void add(const Event& event) noexcept {
    if (size_ == events_.size()) halve();
    events_[size_++] = event;
  }
  void append_to(std::vector<Event>* all) const {
    all->insert(all->end(), events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(size_));
  }
  void clear() noexcept { size_ = 0; }

 private:
  // Merges neighbours of one device. If devices alternate, there may be none: then every second
  // event is dropped with its figures, but never the newest.
  void halve() noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++kept) {
      Event joined = events_[i++];
      if (i < size_ && events_[i].device == joined.device) {
        joined.count += events_[i].count;
        joined.bytes += events_[i].bytes;
        joined.duration_ns = std::max(joined.duration_ns, events_[i].duration_ns);
        ++i;
      }
      events_[kept] = joined;
    }
    size_ = kept;
    if (size_ <= events_.size() * 3 / 4) return;
    kept = 0;
    for (std::size_t i = (size_ - 1) % 2; i < size_; i += 2) events_[kept++] = events_[i];
    size_ = kept;
  }

  std::array<Event, 256> events_{};
  std::size_t size_ = 0;
};

std::mutex g_mutex;
EventList g_lists[kEventKinds];

}  // namespace

std::uint64_t since_start_ns() noexcept {
  const std::uint64_t now = util::now_ns();
  std::uint64_t start = g_start_ns.load(std::memory_order_relaxed);
  if (start == 0 && g_start_ns.compare_exchange_strong(start, now, std::memory_order_relaxed)) {
    start = now;
  }
  return now > start ? now - start : 0;
}

const char* text_of(EventKind kind) noexcept {
  constexpr const char* texts[kEventKinds] = {"growth",     "give_back", "trim",
                                              "oom_rescue", "wait",      "context_lost"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kEventKinds ? texts[index] : "?";
}

void note_event(EventKind kind, const DeviceStats& device, std::uint64_t bytes,
                std::uint64_t duration_ns) noexcept {
  const Event event{since_start_ns(), kind, ordinal_of(device), 1, bytes, duration_ns};
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_lists[static_cast<std::size_t>(kind)].add(event);
}

std::vector<Event> events() {
  std::vector<Event> all;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    for (const EventList& list : g_lists) list.append_to(&all);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  return all;
}

void reset_timeline() noexcept {
  for (EventList& list : g_lists) list.clear();
  g_start_ns.store(0, std::memory_order_relaxed);
}

}  // namespace cupool::stats
