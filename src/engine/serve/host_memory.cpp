// SPDX-License-Identifier: Apache-2.0
// Misses, and what goes back to the driver.
#include "engine/serve/host_memory.h"

#include <algorithm>

#include "engine/block/accounting.h"
#include "engine/context/rdma_libraries.h"
#include "engine/host/host_limit.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/pending_work.h"
#include "util/mutation.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

namespace {

// May be cached whatever the program had at its peak.
constexpr std::uint64_t kLeastCached = 32ull << 20;
// So much more than that peak: threads that allocate and free in turn are never seen at the peak of
// all of them, and what one gives back beyond the limit, the next one allocates anew.
constexpr std::uint64_t kPeakShare = 8;
// Given back at once by decay: unpinning takes the driver some 0.6 ms a MiB.
constexpr std::uint64_t kHostSlice = 16ull << 20;

// Several contexts may use the memory, and the fence of one covers no work of another.
bool has_one_context() {
  return !several_contexts() || CUPOOL_MUTATED("forgets-other-contexts");
}

}  // namespace

HostMemory::HostMemory(const cuda::Driver& driver, const config::Settings& settings,
                       ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle)
    : driver_(driver),
      registry_(registry),
      policy_(policy),
      idle_(idle),
      most_cached_(driver.cuMemFreeHost == nullptr || driver.cuCtxRecordEvent == nullptr
                       ? 0
                       : most_cached_host_bytes(settings.host_max_cached, memory_of_process())),
      blocks_(driver),
      frees_(driver, policy, idle, blocks_, cache_) {}

// RDMA libraries keep page-locked memory registered with their hardware.
bool HostMemory::may_serve(const Context& context) const {
  return context.usable() && Serving::open() && has_one_context() &&
         noted_rdma_library() == nullptr;
}

bool HostMemory::may_allocate(Context** context, std::size_t bytes, unsigned kind) {
  if (most_cached_ == 0 || bytes == 0 || bytes > kLargestHostBlock || kind == kNoHostKind ||
      refusal_in_host_function(driver_) != CUDA_SUCCESS) {
    return false;
  }
  if (*context == nullptr) return false;
  Context* const current = registry_.ask_for_current(**context);
  if (current == nullptr) return false;
  Context* none = nullptr;
  home_.compare_exchange_strong(none, current, std::memory_order_acq_rel);
  *context = current;
  if (serves(*current)) return true;
  // Mostly for good: nothing of it will be needed again. The driver's allocation does not wait.
  if (cache_.any() && !Serving::any_capture()) {
    Patience only_look(0);
    give_back(only_look);
  }
  return false;
}

void* HostMemory::reclaim_and_pop(Context& context, std::size_t bytes, unsigned kind,
                                  std::uint64_t* idle) {
  const std::uint64_t wanted = host_capacity_for(bytes);
  const unsigned node = current_host_node();
  const auto complete = [&] { return context.ordering().epochs().complete_up_to(); };
  if (void* const memory = cache_.pop(wanted, bytes, kind, node, complete())) return memory;
  if (!cache_.any()) return nullptr;
  if (cache_.retired_bytes() != 0) frees_.settle(context);
  if (void* const memory = cache_.pop(wanted, bytes, kind, node, complete())) return memory;
  return cache_.pop_others(wanted, bytes, kind, node, complete(), idle);
}

// Of all blocks `idle` bytes lay idle at a miss, so the program had the rest, and has got what it
// asked for. A miss knows best: threads that free and allocate in turn have half of their memory at
// any later time.
void HostMemory::note_peak(std::uint64_t idle) {
  const std::uint64_t held = blocks_.bytes();
  const std::uint64_t had = held > idle ? held - idle : 0;
  std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < had && !peak_.compare_exchange_weak(peak, had, std::memory_order_relaxed)) {
  }
}

// The driver's call took longer than the look for libraries. What lies idle never exceeds what the
// program itself had at its peak, and an eighth of that.
void HostMemory::adopt(Context& context, std::uint64_t life, void* address, std::size_t bytes,
                       unsigned kind, std::uint64_t idle_at_miss) {
  if (loaded_rdma_library() != nullptr) return;
  std::uint64_t word = 0;
  Block* const block =
      blocks_.adopt(context, address, bytes, host_tag(kind, current_host_node()), &word);
  if (block == nullptr) return;
  // The context may have ended since the driver's call, and the memory with it.
  if (context.incarnation() != life) {
    if (!block->state.claim(word)) return;
    blocks_.forget(*block);
    delete_block(block);
    return;
  }
  note_peak(std::min(idle_at_miss, cache_.bytes()));
  cache_.end_turn();
  const std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  cache_.set_limit(std::min(most_cached_, std::max(peak + peak / kPeakShare, kLeastCached)));
}

// The driver hands out an address only after it was freed, by a route that cupool does not see, or
// by another thread that ends the context just now. A record that is in its hands stays with it.
void HostMemory::forget_stale(const void* address) {
  Block* const stale = blocks_.find(address);
  if (stale == nullptr) return;
  const std::uint64_t word = stale->state.word();
  if (HostBlocks::address_of(*stale) != address) return;  // its record is another block's by now
  const bool live = BlockStateCell::state_of(word) == BlockState::live;
  const bool ours = live ? stale->state.claim(word) : cache_.take(*stale, word);
  blocks_.forget(*stale, reinterpret_cast<CUdeviceptr>(address));
  if (ours) delete_block(stale);
}

unsigned HostMemory::kind_of(const void* host, std::size_t bytes) const {
  const Block* const block = blocks_.find(host);
  const bool as_asked = block != nullptr && HostBlocks::address_of(*block) == host &&
                        block->state.load() == BlockState::live && block->requested == bytes;
  return as_asked ? host_kind_of(block->kind) : kNoHostKind;
}

std::optional<CUresult> HostMemory::try_free(void* host) {
  Block* const block = blocks_.find(host);
  if (block == nullptr) return std::nullopt;
  const std::uint64_t word = block->state.word();
  if (HostBlocks::address_of(*block) != host) return std::nullopt;
  if (BlockStateCell::state_of(word) != BlockState::live) {
    const CUresult refusal = refusal_in_host_function(driver_);
    return refusal != CUDA_SUCCESS ? refusal : CUDA_ERROR_INVALID_VALUE;
  }
  if (!serves(*block->context) || block->shared_outside.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  return frees_.free(*block, word);
}

HostMemory::Given HostMemory::give_up(void* host) {
  Given given;
  given.context = registry_.current();
  given.life = given.context == nullptr ? 0 : given.context->incarnation();
  Block* const block = blocks_.find(host);
  if (block == nullptr) return given;
  const std::uint64_t word = block->state.word();
  if (HostBlocks::address_of(*block) != host) return given;
  given.context = block->context;
  given.life = given.context->incarnation();
  given.refused = BlockStateCell::state_of(word) != BlockState::live || !block->state.claim(word);
  if (given.refused) return given;
  if (blocks_.forget(*block)) {
    given.block = block;
  } else {
    delete_block(block);  // its context has ended, and has passed over what was claimed
  }
  return given;
}

void HostMemory::given_up(const Given& given, bool freed) {
  const bool is_gone = freed || given.block->context->incarnation() != given.life;
  if (is_gone || !blocks_.remember(*given.block)) delete_block(given.block);
}

// Whether no context has work for the GPU, of which the driver's free may wait for any.
bool HostMemory::settle_all(Patience& patience) {
  const ContextList all = registry_.all();
  const auto settles = [&](Context* context) {
    return !context->usable() || frees_.settle(*context, patience);
  };
  return std::all_of(all.begin(), all.end(), settles) && knows_all_contexts();
}

// A context that was current before the first page-locked block is not in the registry, unless the
// program allocates there. Nobody could say what the driver's free would wait for in it. Of a
// handle that has come back, the registry may still have the ended context.
bool HostMemory::knows_all_contexts() {
  const std::optional<SeenContexts> others = other_contexts_seen();
  return others.has_value() && std::all_of(others->begin(), others->end(), [&](CUcontext other) {
           const Context* const known = other == nullptr ? nullptr : registry_.find(other);
           return other == nullptr || (known != nullptr && !known->gone());
         });
}

// Another thread may be about to give back what this call needs.
bool HostMemory::others_gave_back(std::uint64_t since_ns, Patience& patience) {
  constexpr timespec kMoment{0, 100'000};
  const util::Uncancelled throughout;
  const GiveBacks& all = idle_.give_backs();
  while (all.any_under_way() && !patience.over()) nanosleep(&kMoment, nullptr);
  return all.last_ns() >= since_ns;
}

bool HostMemory::is_quiet() {
  Patience only_look(0);
  return PendingWork::none() || settle_all(only_look);
}

// Whether what is pending needs nothing of the host to end, as far as the hooks have seen: no
// callback, no value that a stream waits for, no kernel that can read host memory. Kernels of
// several devices may wait for one another, and for one that a waiting thread has yet to launch.
bool HostMemory::ends_without_host(Context& context) const {
  return PendingWork::is_trusted() && !several_contexts() && policy_.waits_for_host_work() &&
         policy_.waits_for_nothing(context);
}

// Waits in no visit of its own. What was submitted before a wait is complete behind it; what other
// threads submit meanwhile, the driver's free of a block waits for.
bool HostMemory::give_back(Patience& patience) {
  constexpr timespec kMoment{0, 100'000};
  constexpr std::uint64_t kOne = 1;
  Context* const home = home_.load(std::memory_order_acquire);
  std::uint64_t released = 0;
  while (home != nullptr && cache_.any()) {
    const std::uint64_t life = home->incarnation();
    const HostWork::Mark before = home->host_work().begin_wait();
    if (!settle_all(patience)) break;
    {
      const ContextVisit visit(*home, kLongestWaitForOthersNs);
      if (!visit || !home->usable() || home->incarnation() != life) break;
      home->host_work().end_context_wait(before);
      cache_.reclaim(home->ordering().epochs().complete_up_to());
      // Another thread may be in a call for long, as in a launch that compiles its kernel.
      const auto quiet = [this] { return PendingWork::none_since_claim() || is_quiet(); };
      const bool is_idle = quiet();
      if (is_idle || (!patience.over() && ends_without_host(*home))) {
        released += frees_.release(*home, HostCache::Which::idle,
                                   is_idle ? ~std::uint64_t{0} : kOne, quiet);
        const std::uint64_t wanted = patience.wanted_bytes();
        if (is_idle || (wanted != 0 && released >= wanted)) break;
      }
    }
    if (patience.over()) break;
    const util::Uncancelled throughout;
    nanosleep(&kMoment, nullptr);
  }
  return released != 0;
}

// A background thread must not wait for the GPU: the end of the process and of the context wait for
// it.
bool HostMemory::give_back_unneeded() {
  Context* const home = home_.load(std::memory_order_acquire);
  if (home == nullptr || !cache_.any() || Serving::any_capture()) return false;
  const ContextVisit visit(*home);
  Patience only_look(0);
  if (!visit || !home->usable() || !settle_all(only_look)) return false;
  cache_.reclaim(home->ordering().epochs().complete_up_to());
  return frees_.release(*home, HostCache::Which::unneeded, kHostSlice,
                        [this] { return is_quiet(); }) != 0;
}

// First the cache, which takes nothing of this incarnation in any more.
void HostMemory::context_gone(Context& context, bool alone) {
  if (home_.load(std::memory_order_acquire) != &context) return;
  BlockList cached = cache_.take(HostCache::Which::all);
  blocks_.context_gone(context, cached, alone);
  context.stats().gauge_set(Gauge::host_cached_bytes, 0);
  home_.store(nullptr, std::memory_order_release);
}

void HostMemory::fold() {
  const HostCache::Counts counts = cache_.take_counts();
  Context* const home = home_.load(std::memory_order_acquire);
  DeviceStats& stats = home == nullptr ? stats::device(-1) : home->stats();
  stats.add(Counter::host_malloc_calls_total, counts.hits);
  stats.add(Counter::host_served_total, counts.hits);
  stats.add(Counter::host_free_calls_total, counts.frees);
  if (home != nullptr) stats.gauge_set(Gauge::host_cached_bytes, signed_bytes(cache_.bytes()));
}

}  // namespace cupool::engine
