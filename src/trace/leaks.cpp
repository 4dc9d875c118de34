// SPDX-License-Identifier: Apache-2.0
// Live allocations in shards by address, each with the number of its call site. For a sample, a
// small filter in front answers most frees.
#include "trace/leaks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "trace/call_stack.h"
#include "util/clock.h"
#include "util/log.h"

namespace cupool::trace {

namespace {

constexpr std::size_t kShards = 64;
constexpr std::size_t kFilter = std::size_t{1} << 16;
constexpr std::size_t kMostSites = 16384;

struct LiveBlock {
  std::uint64_t bytes;
  int device;
  MemoryKind kind;
  std::size_t site;
};

struct Shard {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, LiveBlock> blocks;
};

struct HashOfStack {
  std::size_t operator()(const CallStack& stack) const {
    std::uint64_t hash = 0;
    for (const std::uintptr_t address : stack.addresses) {
      hash = (hash ^ address) * std::uint64_t{0x9e3779b97f4a7c15};
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Addresses are resolved when a site is new: its module may be unloaded later.
struct Sites {
  std::mutex mutex;
  std::unordered_map<CallStack, std::size_t, HashOfStack> numbers;
  std::deque<std::vector<stats::LeakFrame>> frames{{}};  // the first is for sites beyond kMostSites
  std::vector<stats::SiteModule> modules;

  int number_of(const stats::SiteModule& module) {
    const auto is_it = [&module](const stats::SiteModule& known) {
      return known.path == module.path && known.build_id == module.build_id;
    };
    const auto place = std::find_if(modules.begin(), modules.end(), is_it);
    const auto number = static_cast<int>(place - modules.begin());
    if (place == modules.end()) modules.push_back(module);
    return number;
  }
};

struct State {
  explicit State(std::uint64_t sampled) : one_in(sampled) {}
  const std::uint64_t one_in;
  std::array<Shard, kShards> shards;
  std::array<std::atomic<std::uint32_t>, kFilter> filter{};  // live blocks by a hash of the address
  Sites sites;
};
std::atomic<State*> state{nullptr};

// The free that the calling thread is in, if its memory is listed.
struct FreeNow {
  std::uint64_t address = 0;
  LiveBlock block{};
};
thread_local FreeNow free_now;

std::uint64_t mixed(std::uint64_t address) {
  return (address >> 9) * std::uint64_t{0x9e3779b97f4a7c15};  // addresses are 512 bytes apart
}

// Random, not every n-th: programs allocate in loops.
bool is_sampled(std::uint64_t one_in) {
  if (one_in <= 1) return true;
  static thread_local std::uint64_t random = 0;
  if (random == 0) random = util::now_ns() ^ reinterpret_cast<std::uintptr_t>(&random);
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random % one_in == 0;
}

std::size_t site_of(Sites& sites, const CallStack& stack) {
  {
    const std::lock_guard<std::mutex> lock(sites.mutex);
    const auto found = sites.numbers.find(stack);
    if (found != sites.numbers.end()) return found->second;
    if (sites.numbers.size() >= kMostSites) return 0;
  }
  std::vector<stats::SiteModule> modules;
  std::vector<stats::LeakFrame> frames =
      frames_of(stack, &modules);  // calls the dynamic linker: no lock held
  const std::lock_guard<std::mutex> lock(sites.mutex);
  for (stats::LeakFrame& frame : frames) {
    if (frame.loaded >= 0) {
      frame.loaded = sites.number_of(modules[static_cast<std::size_t>(frame.loaded)]);
    }
  }
  const auto [place, added] = sites.numbers.emplace(stack, sites.frames.size());
  if (added) sites.frames.push_back(std::move(frames));
  return place->second;
}

void list_block(State& into, std::uint64_t address, const LiveBlock& block) {
  const std::uint64_t hash = mixed(address);
  Shard& shard = into.shards[hash >> 58];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const bool added = shard.blocks.insert_or_assign(address, block).second;
  if (added) into.filter[hash >> 48].fetch_add(1, std::memory_order_relaxed);
}

constexpr const char* kIncomplete = "out of host memory: the list of leaks is incomplete";

// Sites that differ only in hidden frames are merged.
using Key = std::tuple<MemoryKind, int, std::vector<std::tuple<std::string, std::uint64_t>>>;

Key key_of(MemoryKind kind, int device, const std::vector<stats::LeakFrame>& frames) {
  Key key{kind, device, {}};
  for (const stats::LeakFrame& frame : frames) {
    std::get<2>(key).emplace_back(frame.module, frame.offset);
  }
  return key;
}

}  // namespace

void start_leaks(std::uint64_t one_in) {
  state.store(new State(one_in), std::memory_order_release);
}

void leak_allocated(const Memory& memory) noexcept {
  State* now = state.load(std::memory_order_acquire);
  if (now == nullptr || !is_sampled(now->one_in)) return;
  try {
    const std::size_t site = site_of(now->sites, call_stack());
    list_block(*now, memory.address, {memory.bytes, memory.device, memory.kind, site});
  } catch (...) {
    CUPOOL_WARN_ONCE("%s", kIncomplete);
  }
}

void leak_freed(std::uint64_t address) noexcept {
  State* now = state.load(std::memory_order_acquire);
  if (now == nullptr) return;
  free_now.address = 0;
  const std::uint64_t hash = mixed(address);
  if (now->filter[hash >> 48].load(std::memory_order_relaxed) == 0) return;
  Shard& shard = now->shards[hash >> 58];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto found = shard.blocks.find(address);
  if (found == shard.blocks.end()) return;
  free_now = {address, found->second};
  shard.blocks.erase(found);
  now->filter[hash >> 48].fetch_sub(1, std::memory_order_relaxed);
}

void leak_free_done(std::uint64_t address, bool refused) noexcept {
  State* now = state.load(std::memory_order_acquire);
  if (now == nullptr || !refused || address == 0 || free_now.address != address) return;
  free_now.address = 0;
  try {
    list_block(*now, address, free_now.block);
  } catch (...) {
    CUPOOL_WARN_ONCE("%s", kIncomplete);
  }
}

stats::Leaks live_by_call_site() {
  State* now = state.load(std::memory_order_acquire);
  if (now == nullptr) return {};
  std::map<std::tuple<std::size_t, MemoryKind, int>, stats::LeakSite> by_number;
  for (Shard& shard : now->shards) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    for (const auto& [address, block] : shard.blocks) {
      stats::LeakSite& site = by_number[{block.site, block.kind, block.device}];
      site.blocks += now->one_in;
      site.bytes += block.bytes * now->one_in;
    }
  }
  stats::Leaks leaks;
  std::map<Key, stats::LeakSite> merged;
  {
    const std::lock_guard<std::mutex> lock(now->sites.mutex);
    leaks.modules = now->sites.modules;
    for (const auto& [number, live] : by_number) {
      const auto [site_number, kind, device] = number;
      const std::vector<stats::LeakFrame>& frames = now->sites.frames[site_number];
      stats::LeakSite& site = merged[key_of(kind, device, frames)];
      site.kind = name_of(kind);
      site.device = device;
      site.frames = frames;
      site.blocks += live.blocks;
      site.bytes += live.bytes;
    }
  }
  leaks.one_in = now->one_in;
  for (auto& [key, site] : merged) leaks.sites.push_back(std::move(site));
  std::stable_sort(
      leaks.sites.begin(), leaks.sites.end(),
      [](const stats::LeakSite& a, const stats::LeakSite& b) { return a.bytes > b.bytes; });
  return leaks;
}

}  // namespace cupool::trace
