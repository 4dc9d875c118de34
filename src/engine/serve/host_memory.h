// SPDX-License-Identifier: Apache-2.0
// Page-locked memory of the program (cuMemAllocHost, cuMemHostAlloc, cuMemFreeHost), served from a
// cache (contract 14). Read with docs/design.md, section Page-locked host memory.
//
// Each block is an allocation of the driver's with the same address, so at any time the driver may
// free it instead: whatever is uncommon goes to the driver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "config/settings.h"
#include "engine/context/context_registry.h"
#include "engine/host/host_cache.h"
#include "engine/host/host_nodes.h"
#include "engine/reclaim/patience.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/host_blocks.h"
#include "engine/serve/host_frees.h"
#include "engine/serve/host_function.h"
#include "engine/serve/idle_memory.h"
#include "util/clock.h"

namespace cupool::engine {

/// One per process. Thread-safe. Serves one context, the first that allocates; in a process with
/// several the driver serves.
class HostMemory {
 public:
  HostMemory(const cuda::Driver& driver, const config::Settings& settings,
             ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle);

  /// Memory of the cache for the calling thread, or null: allocate() decides. No driver call.
  void* try_allocate(std::size_t bytes, unsigned kind) {
    Context* const context = registry_.known_current();
    if (bytes == 0 || kind == kNoHostKind || bytes > kLargestHostBlock || context == nullptr ||
        !runs_no_host_functions() || !serves(*context)) {
      return nullptr;
    }
    return cache_.pop(host_capacity_for(bytes), bytes, kind, current_host_node(),
                      context->ordering().epochs().complete_up_to());
  }

  /// As try_allocate(), also from what the GPU has left by now and from other threads' shards; else
  /// by `real(bytes)`, which allocates into `*address`. While that runs out of memory, idle
  /// page-locked memory goes back to the driver, and it is repeated. `kind`: host_kind().
  /// `patience`: the program's call's.
  template <typename Real>
  CUresult allocate(void** address, std::size_t bytes, unsigned kind, const Real& real,
                    Patience& patience);
  template <typename Real>
  CUresult allocate(void** address, std::size_t bytes, unsigned kind, const Real& real) {
    Patience patience;
    return allocate(address, bytes, kind, real, patience);
  }

  /// Frees the memory at `host` if it is cupool's. `std::nullopt`: the driver's to free, by
  /// free_by_driver().
  std::optional<CUresult> try_free(void* host);

  /// Makes the driver's free of `host`, which may be a block.
  template <typename Real>
  CUresult free_by_driver(void* host, const Real& real) {
    const Given given = give_up(host);
    if (given.refused) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = real();
    if (given.block != nullptr) given_up(given, result == CUDA_SUCCESS);
    if (result != CUDA_SUCCESS) idle_.driver_refused(given.context, given.life, result);
    return result;
  }

  /// The kind of the block that the calling thread was just given for `bytes`; kNoHostKind: it is
  /// not cupool's.
  unsigned kind_of(const void* host, std::size_t bytes) const;

  /// The records of all blocks.
  HostBlocks& blocks() { return blocks_; }

  /// Gives all that lies idle back to the driver, as soon as the GPU has nothing to do: the
  /// driver's frees would wait for it without limit. While other threads keep it busy, block after
  /// block goes back behind a wait, until it is what `patience` wants, if the driver's frees then
  /// wait only for work that ends without the host. Else the memory stays once the patience is
  /// over, and decay takes it. True: some went back.
  bool give_back(Patience& patience);

  /// Repeats `real()`, which began at `began_ns` and ran out of page-locked memory, as long as such
  /// memory goes back, by this thread or another.
  template <typename Real>
  CUresult retry(const Real& real, std::uint64_t began_ns, Patience& patience) {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    do {
      if (!give_back(patience) && !others_gave_back(began_ns, patience)) return result;
      began_ns = util::now_ns();
      result = real();
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && !patience.over());
    return result;
  }

  /// For decay, on a background thread: gives some memory back that was idle for a whole span, if
  /// the GPU has nothing to do. True: there may be more. The caller holds off the end of contexts.
  bool give_back_unneeded();
  /// A step of decay is over.
  void end_decay_step() { cache_.end_decay_step(); }
  /// Called once, by the first call that caches a block.
  void when_it_caches(void (*call)()) { frees_.when_it_caches(call); }

  /// The driver has ended `context`, with its page-locked memory. `alone`: see ContextEnd.
  void context_gone(Context& context, bool alone);

  /// Adds what the shards have counted to the statistics.
  void fold();

 private:
  // A block in a call of the driver's.
  struct Given {
    Block* block = nullptr;      ///< null: not cupool's
    Context* context = nullptr;  ///< the block's, else the current one; null: none that is known
    std::uint64_t life = 0;      ///< of the context
    bool refused = false;        ///< freed before: the driver must not free it
  };

  bool serves(const Context& context) const {
    return home_.load(std::memory_order_acquire) == &context && may_serve(context);
  }
  bool may_serve(const Context& context) const;
  bool may_allocate(Context** context, std::size_t bytes, unsigned kind);
  bool settle_all(Patience& patience);
  bool knows_all_contexts();
  bool others_gave_back(std::uint64_t since_ns, Patience& patience);
  bool is_quiet();
  bool ends_without_host(Context& context) const;
  void* reclaim_and_pop(Context& context, std::size_t bytes, unsigned kind, std::uint64_t* idle);
  void note_peak(std::uint64_t idle);
  void adopt(Context& context, std::uint64_t life, void* address, std::size_t bytes, unsigned kind,
             std::uint64_t idle_at_miss);
  void forget_stale(const void* address);
  Given give_up(void* host);
  void given_up(const Given& given, bool freed);

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  const FreePolicy& policy_;
  IdleMemory& idle_;
  const std::uint64_t most_cached_;  ///< CUPOOL_HOST_MAX_CACHED; 0: the driver serves
  HostBlocks blocks_;
  HostCache cache_;
  HostFrees frees_;
  std::atomic<Context*> home_{nullptr};  ///< the context that is served
  std::atomic<std::uint64_t> peak_{0};   ///< of what the program had of the blocks
};

template <typename Real>
CUresult HostMemory::allocate(void** address, std::size_t bytes, unsigned kind, const Real& real,
                              Patience& patience) {
  Context* context = registry_.current();
  bool served = address != nullptr && may_allocate(&context, bytes, kind);
  std::uint64_t idle = 0;
  if (served) {
    if (void* const memory = reclaim_and_pop(*context, bytes, kind, &idle)) {
      *address = memory;
      return CUDA_SUCCESS;
    }
  }
  const std::uint64_t life = context == nullptr ? 0 : context->incarnation();
  const std::uint64_t start_ns = util::now_ns();
  const std::size_t wanted = served ? host_capacity_for(bytes) : bytes;
  CUresult result = real(wanted);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    patience.wants(wanted);
    result = retry([&] { return real(wanted); }, start_ns, patience);
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY && wanted != bytes) {
    served = false;  // there is no room for whole pages
    result = real(bytes);
  }
  if (result == CUDA_SUCCESS && address != nullptr) {
    forget_stale(*address);
    if (served) adopt(*context, life, *address, bytes, kind, idle);
    (context == nullptr ? stats::device(-1) : context->stats())
        .add(stats::Counter::host_malloc_calls_total);
  }
  if (result != CUDA_SUCCESS) idle_.driver_refused(context, life, result);
  return result;
}

}  // namespace cupool::engine
