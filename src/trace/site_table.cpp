// SPDX-License-Identifier: Apache-2.0
// Open addressing in both tables. What is live at the peak costs nothing to keep: a new peak only
// counts up, and each site stores its share of the last one before it changes.
#include "trace/site_table.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace cupool::trace {

namespace {

// Of system calls that yield; the lock is held for less than a microsecond.
constexpr int kPatience = 1000;

void* zeroed(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

class SiteTable::Lock {
 public:
  explicit Lock(SiteTable& table) : table_(table) {
    for (int i = 0; i < kPatience; ++i) {
      std::uint32_t open = 0;
      held_ = table_.lock_.compare_exchange_strong(open, 1, std::memory_order_acquire);
      if (held_) return;
      ::sched_yield();
    }
  }
  ~Lock() {
    if (held_) table_.lock_.store(0, std::memory_order_release);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  explicit operator bool() const { return held_; }

 private:
  SiteTable& table_;
  bool held_ = false;
};

SiteTable* SiteTable::create(const Limits& limits) noexcept {
  void* const memory = zeroed(sizeof(SiteTable));
  void* const live = zeroed(limits.live * sizeof(Live));
  void* const sites = zeroed((limits.sites + 1) * sizeof(Site));
  if (memory == nullptr || live == nullptr || sites == nullptr) return nullptr;
  auto* const table = static_cast<SiteTable*>(memory);  // all-zero is valid
  table->limits_ = limits;
  table->live_ = static_cast<Live*>(live);
  table->sites_ = static_cast<Site*>(sites);
  return table;
}

// The frames of a stack, without what lies above the program's own call. A frame's module is told
// by its address now: another one may be there later. Where the interpreter begins, its calls
// follow: beyond, one cannot tell which frames belong to which of them.
std::size_t SiteTable::frames_of(const Stack& stack, std::uint64_t* frames) noexcept {
  modules_.refresh();
  std::size_t depth = 0;
  const bool has_python = stack.python.depth != 0;
  const std::uint64_t interpreter =
      has_python ? PackedFrame::module_of(modules_.frame_of(python_address() + 1)) : 0;
  for (std::size_t i = 0; i < stack.depth; ++i) {
    const std::uint64_t frame = modules_.frame_of(stack.addresses[i]);
    if (has_python && PackedFrame::module_of(frame) == interpreter) break;
    if (depth != 0 || !modules_.is_between(frame)) frames[depth++] = frame;
  }
  for (std::size_t i = 0; i < stack.python.depth && depth < kMostFrames; ++i) {
    const std::uint64_t frame = python_.frame_of(stack.python.calls[i]);
    if (frame != 0) frames[depth++] = frame;
  }
  return depth;
}

// The entry of a stack; 0 for all others.
std::uint32_t SiteTable::site_of(const Stack& stack) noexcept {
  std::uint64_t frames[kMostFrames];
  const std::size_t depth = frames_of(stack, frames);
  if (depth == 0) return 0;
  std::uint64_t hash = depth;
  for (std::size_t i = 0; i < depth; ++i) {
    hash = (hash ^ frames[i]) * std::uint64_t{0x9e3779b97f4a7c15};
    hash ^= hash >> 29;
  }
  // The first quarter of places beyond the limit stays free, so that a search ends.
  const std::size_t mask = limits_.sites - 1;
  for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
    Site& site = sites_[i + 1];
    if (site.depth == 0) {
      if (sites_used_ >= limits_.sites / 4 * 3) return 0;
      ++sites_used_;
      site.hash = hash;
      site.depth = static_cast<std::uint32_t>(depth);
      std::copy(frames, frames + depth, site.frames);
      return static_cast<std::uint32_t>(i + 1);
    }
    if (site.hash == hash && site.depth == depth &&
        std::equal(frames, frames + depth, site.frames)) {
      return static_cast<std::uint32_t>(i + 1);
    }
  }
}

SiteTable::Live* SiteTable::find_live(std::uint64_t address) noexcept {
  const std::size_t mask = limits_.live - 1;
  for (std::size_t i = (hash_of(address) >> 24) & mask;; i = (i + 1) & mask) {
    if (live_[i].block.address == address) return &live_[i];
    if (live_[i].block.address == 0) return nullptr;
  }
}

// A byte that reaches its highest value stays there: frees look the block up in vain then.
void SiteTable::raise_filter(std::uint64_t address, int by) noexcept {
  std::atomic<std::uint8_t>& byte = filter_[hash_of(address) >> (64 - kFilterBits)];
  const std::uint8_t now = byte.load(std::memory_order_relaxed);
  if (now != 255) byte.store(static_cast<std::uint8_t>(now + by), std::memory_order_relaxed);
}

void SiteTable::change_live(std::uint32_t number, const SampledBlock& block, double sign) noexcept {
  Site& site = sites_[number];
  if (site.peak_number != peak_number_) {
    site.figures.peak_bytes = site.figures.live_bytes;
    site.peak_number = peak_number_;
  }
  const double bytes = sign * block.weight * static_cast<double>(block.bytes);
  site.figures.live_calls += sign * block.weight;
  site.figures.live_bytes += bytes;
  live_bytes_ += bytes;
  if (live_bytes_ > peak_bytes_) {
    peak_bytes_ = live_bytes_;
    ++peak_number_;
  }
}

void SiteTable::insert_live(const SampledBlock& block, std::uint32_t site) noexcept {
  if (live_used_ >= limits_.live / 4 * 3) {
    ++unfollowed_;
    return;
  }
  ++live_used_;
  const std::size_t mask = limits_.live - 1;
  std::size_t place = (hash_of(block.address) >> 24) & mask;
  while (live_[place].block.address != 0) place = (place + 1) & mask;
  live_[place] = {block, site};
  raise_filter(block.address, 1);
  change_live(site, block, 1);
}

// Moves later entries of the run into the gap, so that no search stops short of them.
void SiteTable::erase_live(Live* entry) noexcept {
  raise_filter(entry->block.address, -1);
  --live_used_;
  const std::size_t mask = limits_.live - 1;
  auto gap = static_cast<std::size_t>(entry - live_);
  for (std::size_t i = (gap + 1) & mask; live_[i].block.address != 0; i = (i + 1) & mask) {
    const std::size_t home = (hash_of(live_[i].block.address) >> 24) & mask;
    if (((i - home) & mask) < ((i - gap) & mask)) continue;
    live_[gap] = live_[i];
    gap = i;
  }
  live_[gap] = {};
}

void SiteTable::end_live(Live* entry) noexcept {
  change_live(entry->site, entry->block, -1);
  erase_live(entry);
}

void SiteTable::allocated(const Stack& stack, const SampledBlock& block) noexcept {
  const Lock lock(*this);
  if (!lock) return lose();
  // The free of an earlier one was not noted.
  if (Live* const earlier = find_live(block.address)) end_live(earlier);
  const std::uint32_t site = site_of(stack);
  stats::SiteFigures& figures = sites_[site].figures;
  ++figures.samples;
  figures.calls += block.weight;
  figures.bytes += block.weight * static_cast<double>(block.bytes);
  insert_live(block, site);
}

bool SiteTable::freed(std::uint64_t address, const void* thread, std::uint64_t call,
                      SampledFree* out) noexcept {
  if (!may_hold(address)) return false;
  const Lock lock(*this);
  if (!lock) return lose(), false;
  Live* const entry = find_live(address);
  if (entry == nullptr) return false;
  *out = {entry->block, entry->site, false};
  out->temporary = entry->block.thread == thread && call - entry->block.call <= kTemporaryCalls;
  stats::SiteFigures& figures = sites_[entry->site].figures;
  figures.freed_calls += out->block.weight;
  if (out->temporary) figures.temporary_calls += out->block.weight;
  end_live(entry);
  return true;
}

void SiteTable::undo(const SampledFree& done) noexcept {
  const Lock lock(*this);
  if (!lock) return lose();
  stats::SiteFigures& figures = sites_[done.site].figures;
  figures.freed_calls -= done.block.weight;
  if (done.temporary) figures.temporary_calls -= done.block.weight;
  insert_live(done.block, done.site);
}

void SiteTable::waited(const SampledFree& done) noexcept {
  const Lock lock(*this);
  if (!lock) return lose();
  sites_[done.site].figures.waited_calls += done.block.weight;
}

bool SiteTable::read(stats::Sites* out) {
  std::vector<Site> used;
  {
    // Most of the memory before the lock, for which others wait only so long.
    used.reserve(limits_.sites + 1);
    const Lock lock(*this);
    if (!lock) return false;
    for (std::size_t i = 0; i <= limits_.sites; ++i) {
      Site& site = sites_[i];
      if (i != 0 && site.depth == 0) continue;
      used.push_back(site);
      if (site.peak_number != peak_number_)
        used.back().figures.peak_bytes = site.figures.live_bytes;
    }
    out->unfollowed = unfollowed_;
    out->modules = modules_.list();
  }
  out->lost = lost_.load(std::memory_order_relaxed);
  out->others = used.front().figures;
  std::vector<std::uint64_t> frames;
  for (std::size_t i = 1; i < used.size(); ++i) {
    frames.insert(frames.end(), used[i].frames, used[i].frames + used[i].depth);
  }
  std::sort(frames.begin(), frames.end());
  frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
  for (const std::uint64_t frame : frames) {
    stats::SiteFrame described;
    if (!python_.describe(frame, &described)) {
      described.module = static_cast<int>(PackedFrame::module_of(frame)) - 1;
      described.offset = PackedFrame::offset_of(frame);
    }
    out->frames.push_back(std::move(described));
  }
  for (std::size_t i = 1; i < used.size(); ++i) {
    stats::Site site;
    site.figures = used[i].figures;
    for (std::size_t at = 0; at < used[i].depth; ++at) {
      const auto place = std::lower_bound(frames.begin(), frames.end(), used[i].frames[at]);
      site.frames.push_back(static_cast<std::size_t>(place - frames.begin()));
    }
    out->sites.push_back(std::move(site));
  }
  std::stable_sort(
      out->sites.begin(), out->sites.end(),
      [](const stats::Site& a, const stats::Site& b) { return a.figures.bytes > b.figures.bytes; });
  return true;
}

}  // namespace cupool::trace
