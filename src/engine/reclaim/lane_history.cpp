// SPDX-License-Identifier: Apache-2.0
// The record of the lane's transitions. A text is stored before what announces it.
#include "engine/reclaim/lane_history.h"

namespace cupool::engine {

std::atomic<std::uint64_t> LaneHistory::word_{0};
std::atomic<std::uint64_t> LaneHistory::away_{0};
std::atomic<const char*> LaneHistory::last_call_{nullptr};
std::atomic<const char*> LaneHistory::end_{nullptr};
std::atomic<const char*> LaneHistory::end_call_{nullptr};

// A reader may have taken its time before a stay began.
std::uint64_t LaneHistory::inside_ns(std::uint64_t word, std::uint64_t now_ns) {
  const std::uint64_t value = word >> 1;
  if ((word & 1) == 0) return value;
  return now_ns > value ? now_ns - value : 0;
}

void LaneHistory::enter(std::uint64_t now_ns) {
  word_ = ((now_ns - inside_ns(word_, now_ns)) << 1) | 1;
}

void LaneHistory::leave(std::uint64_t now_ns) {
  word_ = inside_ns(word_, now_ns) << 1;
}

void LaneHistory::opened(std::uint64_t now_ns) {
  enter(now_ns);
}

void LaneHistory::away(std::uint64_t now_ns, const char* call) {
  leave(now_ns);
  last_call_ = call;
  ++away_;
}

void LaneHistory::returned(std::uint64_t now_ns) {
  enter(now_ns);
}

void LaneHistory::left(std::uint64_t now_ns, const char* why, const char* call) {
  leave(now_ns);
  end_call_ = call;
  end_ = why;
}

std::optional<stats::LaneFigures> LaneHistory::read(std::uint64_t now_ns) {
  stats::LaneFigures figures;
  figures.end = end_;
  if (figures.end != nullptr) figures.end_call = end_call_;
  figures.away = away_;
  if (figures.away != 0) figures.last_call = last_call_;
  const std::uint64_t word = word_;
  figures.inside_ns = inside_ns(word, now_ns);
  if (word == 0 && figures.away == 0 && figures.end == nullptr) return std::nullopt;
  return figures;
}

void LaneHistory::reset() {
  word_ = 0;
  away_ = 0;
  last_call_ = nullptr;
  end_ = nullptr;
  end_call_ = nullptr;
}

}  // namespace cupool::engine
