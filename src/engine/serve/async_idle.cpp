// SPDX-License-Identifier: Apache-2.0
// Complete blocks go back on a stream that carries nothing else, all others behind an event of
// their context.
#include "engine/serve/async_idle.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/backend/pool_attributes.h"
#include "engine/block/accounting.h"
#include "engine/context/submission.h"
#include "engine/reclaim/calls_under_way.h"
#include "engine/reclaim/serving.h"
#include "engine/serve/failure.h"
#include "engine/serve/giving_back.h"
#include "util/clock.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

namespace {

// How long a fence is asked for, of a GPU that may have nothing to do: it needs a moment to pass
// it.
constexpr std::uint64_t kMomentNs = 100'000;
// How long calls may go on that submit work; a launch takes a few microseconds.
constexpr std::uint64_t kSubmissionNs = 50'000;
// Given back at once by decay.
constexpr std::uint64_t kAsyncSlice = 64ull << 20;

// Whether a query knows of all work so far that has used a block: its calls began before the
// block's free, and are over. No default stream has blocks.
bool work_is_submitted() {
  return CallsUnderWay::wait_for(CallsUnderWay::Into::explicit_stream, kSubmissionNs);
}

}  // namespace

// Looks whether the GPU has come to a fence that covers all idle memory. A program may ask for free
// memory in a loop, beside a stream that is busy for long: only new frees need a new one.
EpochNumber AsyncIdle::settle(Context& context, Look look) {
  Ordering& ordering = context.ordering();
  const ContextVisit visit(context);
  if (!visit) return kNoEpoch;
  if (look == Look::none) return ordering.epochs().complete_up_to();
  EpochNumber wanted = caches_.idle(&context).freed_up_to;
  // During a capture there are the fences of before it: see before_capture().
  const bool can_record = !Serving::any_capture();
  if (can_record && (wanted >= ordering.epochs().open() || !ordering.fence(wanted))) {
    wanted = ordering.epochs().join(0, 1);
  }
  const std::uint64_t start_ns = util::now_ns();
  for (;;) {
    BlockList reclaimed;
    const CUresult result = ordering.poll(Ordering::Poll::all, &reclaimed);
    if (result != CUDA_SUCCESS) note_failure(context, result);
    if (!reclaimed.empty()) idle_.cache_or_release(context, reclaimed);
    const EpochNumber complete = ordering.epochs().complete_up_to();
    if (complete >= wanted || result != CUDA_SUCCESS || look == Look::once ||
        util::now_ns() - start_ns > kMomentNs) {
      return complete;
    }
  }
}

// Frees idle blocks by `free`. What the driver refuses twice stays in `idle`, or is lost without
// host memory for its record.
template <typename Free>
std::uint64_t AsyncIdle::free_by(BlockList& idle, const Free& free) {
  BlockList refused;
  std::uint64_t bytes = 0;
  while (Block* const block = idle.pop()) {
    const CUdeviceptr address = block->address;
    if (!blocks_.forget(*block)) continue;
    if (free(address) != CUDA_SUCCESS && free(address) != CUDA_SUCCESS) {
      blocks_.remember(*block) ? refused.push(block) : delete_block(block);
      continue;
    }
    bytes += block->capacity;
    delete_block(block);
  }
  idle = refused;
  return bytes;
}

// On a stream behind which the blocks are unused.
std::uint64_t AsyncIdle::free_in(BlockList& idle, CUstream stream) {
  return free_by(idle,
                 [&](CUdeviceptr address) { return driver_.cuMemFreeAsync(address, stream); });
}

void AsyncIdle::keep(Context& context, BlockList& idle) {
  if (!idle.empty()) caches_.put_back(&context, context.incarnation(), context.stats(), idle);
}

// Blocks that the GPU does not use. A trim of the pool takes only what a wait has covered; on this
// stream it is short. On a full device there may be no stream to be had.
std::uint64_t AsyncIdle::release(Context& context, BlockList& idle) {
  if (idle.empty()) return 0;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUstream stream = nullptr;
  std::uint64_t bytes = 0;
  if (scope.ok() && context.thread_stream(&stream) == CUDA_SUCCESS) {
    bytes = free_in(idle, stream);
    cuda::wait_for_stream(driver_, stream);
  } else if (scope.ok()) {
    bytes = free_by(idle, [&](CUdeviceptr address) { return driver_.cuMemFree_v2(address); });
  }
  keep(context, idle);
  return bytes;
}

// Blocks that the GPU may still use, on a stream of their own behind all work of the context, which
// outlives its handle. Not during a capture, which such an event would harm.
void AsyncIdle::release_in_order(Context& context, BlockList& idle) {
  if (idle.empty() || Serving::any_capture()) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUevent behind = nullptr;
  CUstream stream = nullptr;
  if (!scope.ok() || driver_.cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return;
  if (driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
    if (context.ordering().barriers().record_behind(behind) &&
        driver_.cuStreamWaitEvent(stream, behind, 0) == CUDA_SUCCESS) {
      free_in(idle, stream);
    }
    driver_.cuStreamDestroy_v2(stream);
  }
  driver_.cuEventDestroy_v2(behind);
}

// Of complete epochs, and of streams that have nothing left to do. Other streams may be busy for
// long, and wait for what the program does with this memory. A query could end a capture, and does
// not know yet of work whose call is under way, though the GPU has begun with it (measured).
BlockList AsyncIdle::take_unused(Context& context, Look look, StreamCaches::Which which,
                                 std::uint64_t most_bytes) {
  BlockList unused = caches_.take(&context, settle(context, look), which, most_bytes);
  if (caches_.idle(&context).bytes == 0 || unused.bytes >= most_bytes) return unused;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  if (!scope.ok()) return unused;
  context.ordering().captures().hold_off([&] {
    const EpochNumber closed = previous(context.ordering().epochs().open());
    if (!work_is_submitted()) return;
    BlockList more =
        caches_.take(&context, closed, which, most_bytes - unused.bytes, driver_.cuStreamQuery);
    while (Block* const block = more.pop()) unused.push(block);
  });
  return unused;
}

AsyncIdle::Given AsyncIdle::give_back(Context& context, To to, std::uint64_t limit_ns, Look look) {
  if (!AsyncBlocks::any() || caches_.idle(&context).bytes == 0) return {};
  const util::Uncancelled throughout;
  const ContextVisit visit(context, limit_ns);
  if (!visit || !context.usable()) return {};
  GivingBack part(idle_.give_backs());
  BlockList idle = take_unused(context, look, StreamCaches::Which::all, ~std::uint64_t{0});
  if (idle.empty()) return {};
  const cuda::RelaxedCaptureScope relaxed(driver_);
  Device& device = context.device();
  CUmemoryPool trimmed = nullptr;
  if (to == To::device && !device.default_pool().is_kept()) {
    driver_.cuDeviceGetDefaultMemPool(&trimmed, device.ordinal());
  }
  const std::uint64_t before = trimmed == nullptr ? 0 : reserved_bytes(driver_, trimmed);
  Given given;
  given.blocks = release(context, idle);
  part.gave_back = given.blocks != 0;
  if (given.blocks == 0 || trimmed == nullptr) return given;
  driver_.cuMemPoolTrimTo(trimmed, 0);
  given.device = before - std::min(before, reserved_bytes(driver_, trimmed));
  return given;
}

void AsyncIdle::give_back_of(int device, const Context* own) {
  for (Context* const each : registry_.contexts_of(device)) {
    give_back(*each, To::pool, each == own ? 0 : kShortNs);
  }
}

// What goes back in order is covered by no wait, and a trim takes nothing else. Streams are asked
// of what they have freed so far, without a fence, which may be refused.
void AsyncIdle::before_end(Context& context) {
  if (!AsyncBlocks::any() || CUPOOL_MUTATED("ends-without-a-wait")) return;
  const ContextVisit visit(context);
  if (!visit || !context.usable() || covering_epoch(context) == kNoEpoch) return;
  context.ordering().begin_synchronize();  // closes that epoch
  give_back(context, To::pool, 0, Look::none);
}

// During the capture no fence can be recorded, and no stream asked.
void AsyncIdle::before_capture() {
  if (!AsyncBlocks::any() || Serving::any_capture()) return;
  if (CUPOOL_MUTATED("begins-a-capture-without-a-fence")) return;
  for (Context* const each : registry_.all()) {
    const StreamCaches::Idle idle = caches_.idle(each);
    if (idle.bytes == 0) continue;
    // Another thread may end that context, and wait there for work that waits for the program.
    const ContextVisit visit(*each, kShortNs);
    if (!visit || !each->usable()) continue;
    settle(*each, Look::once);
    each->ordering().fence(idle.freed_up_to);  // a refusal may pass
  }
}

bool AsyncIdle::give_back_in(Context& context, const StreamCaches::Place& place, CUstream stream) {
  const util::Uncancelled throughout;
  const ContextVisit visit(context, kShortNs);
  if (!visit || !context.usable() || Serving::any_capture()) return false;
  BlockList idle = caches_.take_of(place);
  if (idle.empty()) return false;
  GivingBack part(idle_.give_backs());
  const Submission submission(driver_, stream, "cuMemFreeAsync");
  part.gave_back = free_in(idle, stream) != 0;
  keep(context, idle);
  return part.gave_back;
}

// As in take_unused(). A stream that is destroyed begins no capture meanwhile, and joins none.
void AsyncIdle::stream_ends(CUstream stream) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const bool may_ask = !Serving::any_capture() && work_is_submitted();
  caches_.stream_ends(stream, may_ask ? driver_.cuStreamQuery : nullptr);
}

EpochNumber AsyncIdle::covering_epoch(Context& context) {
  const bool any = AsyncBlocks::any() && caches_.idle(&context).bytes != 0;
  return any ? context.ordering().epochs().join(0, 1) : kNoEpoch;
}

bool AsyncIdle::give_back_unneeded() {
  if (!AsyncBlocks::any() || Serving::any_capture()) return false;
  bool more = false;
  for (Context* const context : registry_.all()) {
    if (caches_.idle(context).bytes == 0) continue;
    const ContextVisit visit(*context);
    if (!visit || !context->usable()) continue;
    GivingBack part(idle_.give_backs());
    BlockList idle = take_unused(*context, Look::once, StreamCaches::Which::unneeded, kAsyncSlice);
    const bool may_leave_some = idle.bytes >= kAsyncSlice;
    const std::uint64_t released = release(*context, idle);
    more = more || (may_leave_some && released != 0);
    part.gave_back = released != 0;
    context->device().default_pool().unneeded_released(released);
  }
  return more;
}

void AsyncIdle::context_ends(Context& context) {
  if (!AsyncBlocks::any() || cuda::shut_down() || !context.usable()) return;
  BlockList idle = caches_.context_ends(&context);
  release_in_order(context, idle);
  keep(context, idle);
}

// Whether the driver still knows the memory at `address` as that of a pool: no context is needed.
bool AsyncIdle::is_in_pool(CUdeviceptr address) const {
  CUmemoryPool pool = nullptr;
  return !cuda::shut_down() &&
         driver_.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ==
             CUDA_SUCCESS &&
         pool != nullptr;
}

// What could not go back before is idle in the pool, which outlives the context.
void AsyncIdle::context_gone(Context& context, bool alone) {
  if (!AsyncBlocks::any()) return;
  Orphans& orphans = context.device().orphans();
  BlockList idle = caches_.context_ends(&context);
  while (Block* const block = idle.pop()) {
    // What is not on record any more has made room for newer memory there.
    const bool left = blocks_.forget(*block) && is_in_pool(block->address);
    if (left) alone ? orphans.add(*block) : orphans.add(block->address);
    if (!left && alone) delete_block(block);
  }
  blocks_.context_gone(context, alone);
}

std::uint64_t AsyncIdle::bytes(Device& device) {
  if (!AsyncBlocks::any()) return 0;
  std::uint64_t sum = 0;
  for (Context* const context : registry_.contexts_of(device.ordinal())) {
    sum += caches_.idle(context).bytes;
  }
  return sum;
}

void AsyncIdle::fold() {
  if (!AsyncBlocks::any()) return;
  caches_.fold();
  for (Device* const device : registry_.devices().all()) {
    device->stats().gauge_set(stats::Gauge::own_async_cached_bytes, signed_bytes(bytes(*device)));
  }
}

// A free that is just under way may still leave its block idle; decay has it then.
void AsyncIdle::give_all_back() {
  if (!AsyncBlocks::any() || caches_.idle().bytes == 0) return;
  for (Context* const context : registry_.all()) {
    if (caches_.idle(context).bytes == 0) continue;
    const ContextVisit visit(*context, kLongestWaitForOthersNs);
    if (!visit || !context->usable()) continue;
    before_end(*context);
    GivingBack part(idle_.give_backs());
    BlockList idle = caches_.context_ends(context);
    part.gave_back = !idle.empty();
    release_in_order(*context, idle);
    keep(*context, idle);
  }
}

}  // namespace cupool::engine
