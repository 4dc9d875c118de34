// SPDX-License-Identifier: Apache-2.0
// Frees while the engine does not serve. The driver frees a spare block; its answer and its wait
// apply to the program's free. Read with docs/design.md, Engine.
#include "engine/serve/driver_frees.h"

#include "cuda/errors.h"
#include "engine/block/accounting.h"
#include "engine/context/green_contexts.h"
#include "util/clock.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

Block* DriverFrees::block_of_ours(CUdeviceptr address) const {
  Block* block = blocks_.find(address);
  const bool ours = block != nullptr && block->source != BlockSource::passed_through;
  return ours ? block : nullptr;
}

CUresult DriverFrees::refused_by_driver(Context& context, CUresult answer) {
  context.stats().add(Counter::free_calls_total);
  context.stats().add(Counter::free_rejected_total);
  return answer;
}

std::optional<CUresult> DriverFrees::refuse(CUdeviceptr address, CUresult answer) {
  const Block* block = block_of_ours(address);
  if (block == nullptr) return std::nullopt;
  return refused_by_driver(*block->context, answer);
}

// Whether an error is that of the current context, and `context`, which owns the memory, is another
// one, or the driver does not say. It frees nothing then, and `context` has not failed.
bool DriverFrees::is_of_current(const Context& context, CUresult error) const {
  CUcontext current = nullptr;
  if (!cuda::is_sticky(error)) return false;
  if (driver_.cuCtxGetCurrent(&current) != CUDA_SUCCESS) return true;
  current = GreenContexts::of_process().primary_of(current);
  return current != nullptr && current != context.handle();
}

std::optional<CUresult> DriverFrees::free_as_driver(CUdeviceptr address) {
  const Block* const found = block_of_ours(address);
  if (found == nullptr) return std::nullopt;
  const std::uint64_t start = util::now_ns();
  Context& context = *found->context;
  const std::uint64_t life = context.incarnation();
  WaitResult wait;
  const HostWork::Mark before = context.host_work().begin_wait();
  if (context.usable()) {
    wait = context.ordering().barriers().free_spare();
    if (wait.complete()) context.host_work().end_context_wait(before);
    // Other errors concern the spare memory, not the program.
    if (cuda::is_capture_refusal(wait.error) || wait.error == CUDA_ERROR_NOT_PERMITTED ||
        is_of_current(context, wait.error)) {
      return refused_by_driver(context, wait.error);
    }
  }
  ClaimedBlock claimed;
  const PointerMap::Claim claim = claim_block(blocks_, address, &claimed);
  if (claim != PointerMap::Claim::claimed) {
    return answer_unclaimed(driver_, address, claim, claimed);
  }
  retire_claimed(claimed, wait.complete() && claimed.context == &context);
  context.stats().call_times().free.record(util::now_ns() - start);
  return FreeWait::answer_of_free(context, life, wait.error);
}

// Counts a claimed block, and retires it, or caches it where the free has waited for the GPU.
void DriverFrees::retire_claimed(const ClaimedBlock& claimed, bool has_waited) {
  Context& context = *claimed.context;
  const ContextVisit visit(context);
  if (!visit || !claimed.is_alive()) return drop(claimed);
  Block* const block = claimed.block;
  DeviceStats& stats = context.stats();
  stats.add(Counter::free_calls_total);
  stats.add(Counter::free_passthrough_total);
  stats.add(Counter::free_bytes_total, block->requested);
  stats::this_thread().add_frees(1);
  if (!has_waited) {
    retire(*block);
    return;
  }
  count_retired(*block);
  BlockList reclaimed;
  reclaimed.push(block);
  idle_.cache_or_release(context, reclaimed);
  idle_.cache_reclaimed(context);
}

std::optional<CUresult> DriverFrees::refuse_in_stream(CUdeviceptr address,
                                                      CUresult (*free)(CUdeviceptr, CUstream),
                                                      CUstream stream) {
  Block* block = Serving::any_capture() ? block_of_ours(address) : nullptr;
  if (block == nullptr || !block->context->usable()) return std::nullopt;
  Context& context = *block->context;
  const CUresult asked = context.ordering().barriers().free_spare_in_stream(free, stream);
  if (asked == CUDA_SUCCESS) return std::nullopt;
  return refused_by_driver(context, asked);
}

}  // namespace cupool::engine
