// Freeing: a block is taken from the program and retired; whether the host waits is decided here.
// Read with docs/compatibility.md, which promises what each mode does.
#include <algorithm>

#include "core/accounting.h"
#include "core/allocator.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::core {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

namespace {

// Frees that share a fence: enough that its 0.2 us do not count, few enough that blocks come back
// soon (docs/measurements); large blocks close an epoch earlier, so that CUPOOL_MAX_PENDING can be
// kept by waiting for the oldest of several.
constexpr std::size_t kBatchBlocks = 64;
constexpr std::uint64_t kBatchShare = 16;

}  // namespace

// Adds a block to the thread's batch. True: the batch is due.
[[gnu::always_inline]] inline bool Allocator::add_to_batch(Context& context, ThreadCache& cache,
                                                           Block& block) {
  const ThreadCache::Guard guard(cache);
  Tally& tally = cache.tally;
  tally.count_free(block.requested, block.capacity);
  if (tally.is_due(cache.limits.tally)) tally.fold(context.stats());
  return cache.retire(&block);
}

// Nothing but to keep the block with the thread, unless the mode or the program's host memory asks
// for a wait, or the batch is due.
[[gnu::always_inline]] inline CUresult Allocator::free_claimed(Block& block) {
  Context& context = *block.context;
  ThreadCache* cache = may_wait(context) ? nullptr : thread_cache(context);
  if (cache == nullptr) return free_waiting(block);
  const bool timed = is_timed();
  const std::uint64_t start = timed ? util::now_ns() : 0;
  if (add_to_batch(context, *cache, block)) return end_batch(context, *cache, start);
  if (timed) context.stats().free_time().record(util::now_ns() - start, kTimedShare);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Allocator::try_free(CUdeviceptr address) {
  Block* block = nullptr;
  const PointerMap::Claim claim = blocks_.claim(address, &block);
  if (claim != PointerMap::Claim::claimed) return answer_unclaimed(address, claim, block);
  return free_claimed(*block);
}

[[gnu::noinline]] CUresult Allocator::free_claimed_otherwise(Block& block) {
  return free_claimed(block);
}

bool Allocator::try_free_live(CUdeviceptr address) {
  Block* block = nullptr;
  return blocks_.claim(address, &block) == PointerMap::Claim::claimed &&
         free_claimed(*block) == CUDA_SUCCESS;
}

// The rest of a free that makes the batch due. What is timed anyway stands for itself alone: the
// longest calls are among these.
[[gnu::noinline]] CUresult Allocator::end_batch(Context& context, ThreadCache& cache,
                                                std::uint64_t start_ns) {
  const std::uint64_t start = start_ns != 0 ? start_ns : util::now_ns();
  const CUresult result = end_batch(context, cache);
  context.stats().free_time().record(util::now_ns() - start);
  return result;
}

// The free waits for copies and callbacks first, so that the block can go to the thread's batch
// like any other: a program that copies between its kernels frees mostly so.
[[gnu::noinline]] CUresult Allocator::free_waiting(Block& block) {
  Context& context = *block.context;
  const std::uint64_t start = util::now_ns();
  if (waits_for_context(context)) return free_singly(block, start);
  ThreadCache* cache = thread_cache(context);
  // A failure is met, and answered, once more behind the block's retirement.
  if (cache == nullptr || wait_for_host_work(context) != CUDA_SUCCESS) {
    return free_singly(block, start);
  }
  if (add_to_batch(context, *cache, block)) return end_batch(context, *cache, start);
  context.stats().free_time().record(util::now_ns() - start);
  return CUDA_SUCCESS;
}

CUresult Allocator::free_singly(Block& block, std::uint64_t start_ns) {
  Context& context = *block.context;
  DeviceStats& stats = context.stats();
  stats.add(Counter::free_calls_total);
  stats.add(Counter::free_bytes_total, block.requested);
  stats::this_thread().add_frees(1);
  const std::uint64_t capacity = block.capacity;
  // Before the block joins an epoch, whose fence another thread may record at once: what is
  // submitted after that fence is not covered by a wait for it.
  const HostWork::Mark before = context.host_work().begin_wait();
  const CUresult result = finish_free(context, before, retire(block), capacity);
  stats.free_time().record(util::now_ns() - start_ns);
  return result;
}

// The thread's batch joins the open epoch, which is closed with a fence, unless another thread is
// at that: the next one's fence covers this batch too. What has become quiet by then is the
// thread's again.
CUresult Allocator::end_batch(Context& context, ThreadCache& cache) {
  if (!serving_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  look_for_agents();
  Ordering& ordering = context.ordering();
  Ordering::Batch full{kBatchBlocks, context.device().limits().max_pending / kBatchShare};
  std::uint64_t bytes_freed = 0;
  {
    const ThreadCache::Guard guard(cache);
    if (cache.tally.is_long()) cache.tally.fold(context.stats());
    const bool early = cache.expects_free();
    cache.renew(limits_of_thread(context));
    bytes_freed = cache.batch_bytes();
    if (early && !cache.is_due() &&
        ordering.pending_bytes() <= pending_limit(context, bytes_freed)) {
      return CUDA_SUCCESS;
    }
    full.blocks = std::min(full.blocks, cache.target());
    cache.join(ordering);
  }
  CUresult result = ordering.end_batch(full);
  if (result == CUDA_SUCCESS) result = bound_pending(context, bytes_freed);
  collect(context, cache);
  return answer_of_free(context, result);
}

std::optional<CUresult> Allocator::try_free_in_stream(CUdeviceptr address) {
  const std::uint64_t start = util::now_ns();
  Block* block = nullptr;
  const PointerMap::Claim claim = blocks_.claim(address, &block);
  if (claim != PointerMap::Claim::claimed) return answer_unclaimed(address, claim, block);
  Context& context = *block->context;
  context.stats().add(Counter::free_calls_total);
  context.stats().add(Counter::free_bytes_total, block->requested);
  stats::this_thread().add_frees(1);
  retire(*block);
  context.stats().free_time().record(util::now_ns() - start);
  return CUDA_SUCCESS;
}

// What a free is answered whose block is not this thread's to retire. Nothing: not ours.
std::optional<CUresult> Allocator::answer_unclaimed(CUdeviceptr address, PointerMap::Claim claim,
                                                    const Block* found) {
  if (claim == PointerMap::Claim::missing) return std::nullopt;
  DeviceStats& stats = found->context->stats();
  stats.add(Counter::free_calls_total);
  if (claim == PointerMap::Claim::unusable) {
    // I7: after a sticky error the driver answers; it does not free anything any more. In the
    // block's own context: from a healthy one it would free memory of a pool, which we give back
    // later.
    const cuda::ContextScope scope(driver_, found->context->handle());
    return scope.ok() ? driver_.cuMemFree_v2(address) : scope.result();
  }
  stats.add(Counter::free_rejected_total);
  return CUDA_ERROR_INVALID_VALUE;
}

EpochNumber Allocator::retire(Block& block) {
  Context& context = *block.context;
  count_live(context.stats(), block, -1);
  context.stats().gauge_add(Gauge::retired_bytes, signed_bytes(block.capacity));
  return context.ordering().retire(&block);
}

// What a free does after its block is retired: nothing, unless the mode or the program's host
// memory asks for a wait, or too much is pending.
CUresult Allocator::finish_free(Context& context, const HostWork::Mark& before, EpochNumber epoch,
                                std::uint64_t bytes_freed) {
  if (CUPOOL_MUTATED("obvious-mapping")) keep_quiet(context);
  CUresult result = CUDA_SUCCESS;
  const config::FreeMode mode = free_mode();
  if (!serving_.load(std::memory_order_relaxed)) {
    // What is pending that touches host memory, nobody knows.
    if (mode == config::FreeMode::ordered) return CUDA_SUCCESS;
    result = wait_for_context(context, before, epoch, Counter::free_waits_host_copy_total);
  } else if (mode == config::FreeMode::sync) {
    result = wait_for_context(context, before, epoch, Counter::free_waits_sync_total);
  } else {
    if (mode == config::FreeMode::automatic) {
      // Any kernel may touch such memory, so only the whole context's work will do.
      if (host_reachable_.any(HostReachable::Kind::managed)) {
        result = wait_for_context(context, before, epoch, Counter::free_waits_managed_total);
      } else if (host_reachable_.any(HostReachable::Kind::zero_copy)) {
        result = wait_for_context(context, before, epoch, Counter::free_waits_zero_copy_total);
      } else if (context.host_work().needs_context()) {
        result = wait_for_context(context, before, epoch, Counter::free_waits_host_copy_total);
      } else if (context.host_work().maybe_pending()) {
        result = wait_for_host_work(context);
        // The program may lean on the wait: all of the context's work covers the copies too.
        if (cuda::is_refusal(result)) {
          result = wait_for_context(context, before, epoch, Counter::free_waits_host_copy_total);
        }
      }
    }
    if (result == CUDA_SUCCESS) {
      // One block closes the epoch: such frees are few, or have waited already.
      const std::uint64_t bytes = context.device().limits().max_pending / kBatchShare;
      result = context.ordering().close_if_full({1, bytes});
    }
    if (result == CUDA_SUCCESS) result = bound_pending(context, bytes_freed);
  }
  return answer_of_free(context, result);
}

CUresult Allocator::wait_for_context(Context& context, const HostWork::Mark& before,
                                     EpochNumber epoch, Counter reason) {
  const std::uint64_t start = util::now_ns();
  bool waited = false;
  const CUresult result = context.ordering().wait(epoch, &waited);
  if (waited) count_wait(context.stats(), reason, start);
  if (result == CUDA_SUCCESS) context.host_work().end_context_wait(before);
  keep_quiet(context);
  return result;
}

CUresult Allocator::wait_for_host_work(Context& context) {
  if (CUPOOL_MUTATED("no-host-wait")) return CUDA_SUCCESS;
  const std::uint64_t start = util::now_ns();
  bool waited = false;
  const CUresult result = context.host_work().wait(&waited);
  if (waited) count_wait(context.stats(), Counter::free_waits_host_copy_total, start);
  return result;
}

// What may be pending at a free. What it frees itself comes on top if it is more than a batch of
// small blocks: to wait for that would let the GPU run dry, and memory would not be less, since it
// was live until now.
std::uint64_t Allocator::pending_limit(Context& context, std::uint64_t bytes_freed) const {
  const std::uint64_t threads = context.thread_caches().in_use();
  const ThreadCache::Limits one = limits_of_thread(context);
  const std::uint64_t untold = threads * static_cast<std::uint64_t>(one.tally);
  const std::uint64_t all = context.device().pending_bound(untold + bytes_freed);
  return all - std::min(all / 4, threads * one.few) + (bytes_freed > one.few ? bytes_freed : 0);
}

// Bounded run-ahead: this free waits for the oldest epochs, with which the GPU is done soonest.
CUresult Allocator::bound_pending(Context& context, std::uint64_t bytes_freed) {
  const std::uint64_t limit = pending_limit(context, bytes_freed);
  Ordering& ordering = context.ordering();
  if (ordering.pending_bytes() <= limit) return CUDA_SUCCESS;
  const std::uint64_t start = util::now_ns();
  CUresult result = CUDA_SUCCESS;
  bool waited = false;
  for (std::uint64_t before = 0; ordering.pending_bytes() > limit;) {
    before = ordering.pending_bytes();
    result = ordering.wait_for_oldest(&waited);
    if (result != CUDA_SUCCESS || ordering.pending_bytes() >= before) break;
  }
  if (waited) count_wait(context.stats(), Counter::free_waits_pending_limit_total, start);
  keep_quiet(context);
  return result;
}

// The program is about to wait for the legacy stream. False: nothing is pending that this could
// settle, or it is another context's. The thread's batch stays as it is, since the thread frees
// nothing meanwhile; epochs are for what is pending besides.
bool Allocator::begin_stream_wait(Context& context, StreamWait* wait) {
  if (ThreadCache* const cache = last_thread_cache(context)) {
    const ThreadCache::Guard guard(*cache);
    wait->batch = cache->batch_number();
  }
  const bool epochs = context.ordering().pending_bytes() != 0;
  const bool pending = wait->batch != ThreadCache::kNoBatch || epochs ||
                       context.host_work().maybe_pending() || context.host_work().needs_context();
  if (!pending || registry_.ask_for_current(&context) != &context) return false;
  if (epochs) wait->before = context.ordering().begin_synchronize();
  wait->host_work = context.host_work().begin_wait();
  return true;
}

// It has been one for all work of the context.
void Allocator::end_stream_wait(Context& context, const StreamWait& wait) {
  if (wait.before != 0) context.ordering().end_synchronize(wait.before);
  context.host_work().end_context_wait(wait.host_work);
  keep_quiet(context);
  if (ThreadCache* const cache = last_thread_cache(context)) collect(context, *cache, wait.batch);
}

void Allocator::count_wait(DeviceStats& stats, Counter reason, std::uint64_t start_ns) {
  stats.add(Counter::free_waits_total);
  stats.add(reason);
  const std::uint64_t waited_ns = util::now_ns() - start_ns;
  stats.add(Counter::free_wait_ns_total, waited_ns);
  stats::this_thread().add_wait(waited_ns);
  if (waited_ns >= stats::kShortestWaitNs) {
    stats::note_event(stats::EventKind::wait, stats, 0, waited_ns);
  }
}

CUresult Allocator::answer_of_free(Context& context, CUresult result) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return CUDA_SUCCESS;
  note_failure(context, result);
  if (cuda::is_sticky(result) || result == CUDA_ERROR_DEINITIALIZED) return result;
  // Our trouble, not the program's: the block stays retired and is not served again.
  CUPOOL_WARN_ONCE(
      "waiting for the GPU in a free failed with error %d; the block is kept aside. "
      "CUPOOL_ENABLE=0 turns cupool off",
      static_cast<int>(result));
  return CUDA_SUCCESS;
}

}  // namespace cupool::core
