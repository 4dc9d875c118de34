// SPDX-License-Identifier: Apache-2.0
// Drops the blocks, imports and host memory of an ended context.
#include "engine/serve/context_ending.h"

#include <algorithm>

#include "engine/block/accounting.h"
#include "engine/context/green_contexts.h"
#include "engine/reclaim/host_targets.h"
#include "stats/timeline.h"
#include "trace/other_memory.h"
#include "trace/watch.h"
#include "util/mutation.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

void ContextEnding::context_gone(Context& context, bool alone) {
  if (CUPOOL_MUTATED("gone-context-serves")) return;
  const std::lock_guard one_at_a_time(ending_mutex_);
  if (context.gone()) return;
  GreenContexts::of_process().primary_ended(context.handle());
  if (!alone) return leave_context(context);
  context.set_gone();
  registry_.forget_found();
  DeviceStats& stats = context.stats();
  const std::uint64_t lost_before = stats.value(Counter::context_lost_bytes_total);
  LeftBlocks lost_blocks = blocks_.extract([&](const Block& candidate) {
    return candidate.context == &context &&
           candidate.state.load(std::memory_order_relaxed) != BlockState::leaving;
  });
  while (Block* const block = lost_blocks.pop()) {
    // Claimed, so that a free on its way finds it freed: one that has claimed a block counts it.
    const std::uint64_t word = block->state.word();
    const bool live =
        BlockStateCell::state_of(word) == BlockState::live && block->state.claim(word);
    if (live && trace::watching()) {
      trace::note_lost({block->address, block->requested, context.device().ordinal()});
    }
    if (block->source == BlockSource::passed_through) {
      stats.add(Counter::context_lost_bytes_total, block->requested);
      count_passed(stats, *block, -1);
      delete_block(block);
      continue;
    }
    if (live) {
      stats.add(Counter::context_lost_bytes_total, block->requested);
      count_live(stats, *block, -1);
    } else {
      const bool freed = block->state.load(std::memory_order_relaxed) == BlockState::freed;
      stats.gauge_add(freed ? Gauge::retired_bytes : Gauge::cached_bytes,
                      -signed_bytes(block->capacity));
    }
    stats.gauge_add(Gauge::held_bytes, -signed_bytes(block->capacity));
    count_plain(stats, *block, -1);
    if (block->aside) context.device().budget().count_aside(-signed_bytes(block->capacity));
    // Memory that another process has open is released when its leases end.
    const bool unused = !block->shared_outside.load(std::memory_order_relaxed) ||
                        exports_.end(*block, IpcExports::Kept::memory);
    const bool is_kept = block->aside || block->exported;
    if (block->source == BlockSource::pool && unused && !is_kept) {
      context.device().orphans().add(*block);
    } else {
      delete_block(block);
    }
  }
  const std::uint64_t lost = stats.value(Counter::context_lost_bytes_total) - lost_before;
  if (lost != 0) stats::note_event(stats::EventKind::context_lost, stats, lost);
  imports_.context_gone(context);
  host_.context_gone(context, alone);
  async_.idle().context_gone(context, alone);
  trace::note_others_lost(&context);
  leave_device(context.device());
  forget_host_reachable();
}

// Managed and mapped memory is gone with its context, which need not be the one that was current
// when it came: the driver knows. If it does not say, the memory is gone if no context is left.
// Another thread may just begin one, with memory of its own.
void ContextEnding::forget_host_reachable() {
  const ContextList all = registry_.all();
  const bool none_left =
      std::all_of(all.begin(), all.end(), [](const Context* each) { return each->gone(); });
  policy_.host_reachable().forget([&](CUdeviceptr start, const HostReachable::Memory& memory) {
    unsigned type = 0;
    const CUresult known =
        driver_.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start);
    if (known == CUDA_SUCCESS || known == CUDA_ERROR_INVALID_VALUE) return known != CUDA_SUCCESS;
    return none_left && (memory.context == nullptr || memory.context->gone());
  });
}

// For a context in which a thread still is, with blocks in its hands. Their records stay unchanged;
// their addresses no longer belong to anyone.
void ContextEnding::leave_context(Context& context) {
  context.set_gone_untouched();
  context.ordering().captures().forget();
  registry_.drop(context);
  registry_.forget_found();
  blocks_.remove_if([&](const Block& candidate) { return candidate.context == &context; });
  imports_.context_gone(context);
  host_.context_gone(context, false);
  async_.idle().context_gone(context, false);
  trace::note_others_lost(&context);
  leave_device(context.device());
}

// What needs no context is done once the last one of the device has ended.
void ContextEnding::leave_device(Device& device) {
  HostTargets::forget_pools();  // a reset of the device ends its pools
  if (cuda::shut_down() || CUPOOL_MUTATED("keeps-after-the-last-context")) return;
  if (registry_.contexts_of(device.ordinal()).empty()) device.default_pool().contexts_gone();
}

}  // namespace cupool::engine
