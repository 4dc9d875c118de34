// SPDX-License-Identifier: Apache-2.0
// Records of passed-through memory in the statistics and the pointer map.
#include "engine/serve/pass_through.h"

#include "engine/block/accounting.h"
#include "engine/serve/retire.h"
#include "util/clock.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;

void PassThrough::note_allocation(Context* context, std::uint64_t bytes, const CUdeviceptr* address,
                                  CUresult result, std::uint64_t start_ns) {
  DeviceStats& stats = context == nullptr ? stats::device(-1) : context->stats();
  stats.add(Counter::malloc_calls_total);
  stats.call_times().malloc.record(util::now_ns() - start_ns);
  if (result != CUDA_SUCCESS || address == nullptr) {
    stats.add(Counter::malloc_failed_total);
    return;
  }
  stats.add(Counter::malloc_requested_bytes_total, bytes);
  stats.add(Counter::served_passthrough_total);
  stats.requested_sizes().record(bytes);
  stats::this_thread().add_mallocs(1, bytes);
  Block* block = context == nullptr ? nullptr : new_block();
  if (block == nullptr) return;
  block->address = *address;
  block->capacity = bytes;
  block->requested = bytes;
  block->context = context;
  block->source = BlockSource::passed_through;
  block->state.store(BlockState::live, std::memory_order_relaxed);
  count_passed(stats, *block, +1);
  record(block);
}

// Removes the record before the real free: another thread may get the same address at once and add
// its own record.
PassThrough::Taken PassThrough::take(CUdeviceptr address) {
  Block* block = blocks_.find(address);
  if (block == nullptr || block->source != BlockSource::passed_through) return {};
  const Context* const context = block->context;
  const std::uint64_t life = context->incarnation();
  // Read after the life: a context that ends is marked first, and its records dropped last.
  const Taken taken{block, context->gone() ? 0 : life};
  return blocks_.erase(block) ? taken : Taken{};
}

// The driver did not free it. The end of its context found no record to count, and where another
// thread has got the address, the memory was freed by a route that cupool does not see.
void PassThrough::put_back(const Taken& passed) {
  Block* const block = passed.block;
  DeviceStats& stats = block->context->stats();
  const bool ended = block->context->incarnation() != passed.life;
  if (ended || blocks_.find(block->address) != nullptr) {
    if (ended) stats.add(Counter::context_lost_bytes_total, block->requested);
    count_passed(stats, *block, -1);
    return delete_block(block);
  }
  record(block);
}

// Without host memory for its record the block is the driver's alone.
void PassThrough::record(Block* block) {
  forget(add_block(blocks_, block));
}

// Memory that was freed by a route that cupool does not see. A block of cupool's stays as it is:
// it may be in use.
void PassThrough::forget(Block* replaced) {
  if (replaced == nullptr || replaced->source != BlockSource::passed_through) return;
  count_passed(replaced->context->stats(), *replaced, -1);
  delete_block(replaced);
}

void PassThrough::note_free(const Taken& taken, CUresult result, std::uint64_t start_ns) {
  Block* const passed = taken.block;
  Context* context = passed != nullptr ? passed->context : registry_.current();
  DeviceStats& stats = context == nullptr ? stats::device(-1) : context->stats();
  stats.add(Counter::free_calls_total);
  stats.call_times().free.record(util::now_ns() - start_ns);
  if (passed == nullptr) {
    stats.add(result == CUDA_SUCCESS ? Counter::free_foreign_total : Counter::free_rejected_total);
    return;
  }
  if (result != CUDA_SUCCESS) {
    stats.add(Counter::free_rejected_total);
    return put_back(taken);
  }
  stats.add(Counter::free_passthrough_total);
  stats.add(Counter::free_bytes_total, passed->requested);
  stats::this_thread().add_frees(1);
  count_passed(stats, *passed, -1);
  context->device().pool_start().count_free_by_driver();
  delete_block(passed);
}

void PassThrough::managed_allocated(CUdeviceptr address, std::uint64_t bytes) {
  Context* context = registry_.current();
  policy_.host_reachable().add(HostReachable::Kind::managed, address, {bytes, context});
  default_pools_.leave_all();  // whose idle memory the driver cannot evict for it
  if (context == nullptr || !context->usable()) return;
  const ContextVisit visit(*context);
  if (visit) idle_.leave_room_for_managed(*context);
}

void PassThrough::managed_pool_used() {
  policy_.host_reachable().pool_is_managed();
  default_pools_.leave_all();
}

void PassThrough::zero_copy_requested(CUdeviceptr device) {
  policy_.host_reachable().add(HostReachable::Kind::zero_copy, start_of(device),
                               {0, registry_.current()});
}

// The begin of the page-locked memory that contains `device`. Programs request device pointers
// inside of it, and free it by its begin.
std::uintptr_t PassThrough::start_of(CUdeviceptr device) const {
  CUdeviceptr start = 0;
  const CUresult result =
      driver_.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device);
  return result == CUDA_SUCCESS ? start : device;
}

}  // namespace cupool::engine
