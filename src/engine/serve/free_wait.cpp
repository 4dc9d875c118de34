// SPDX-License-Identifier: Apache-2.0
// The waits of a free, and their counters.
#include "engine/serve/free_wait.h"

#include <algorithm>

#include "cuda/errors.h"
#include "engine/context/thread_order.h"
#include "engine/serve/failure.h"
#include "engine/serve/thread_limits.h"
#include "stats/timeline.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;

// While a free waits.
class FreeWait::Waiting {
 public:
  Waiting() { waiting_.fetch_add(1, std::memory_order_relaxed); }
  ~Waiting() { waiting_.fetch_sub(1, std::memory_order_relaxed); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
};

WaitResult FreeWait::wait_for_host_work(Context& context, Waited before) {
  if (CUPOOL_MUTATED("no-host-wait")) return {};
  const Waiting waiting;
  const std::uint64_t start = util::now_ns();
  const WaitResult result = context.host_work().wait();
  if (result.waited) {
    count_wait(context.stats(), Counter::free_waits_host_copy_total, start, before);
  }
  return result;
}

WaitResult FreeWait::wait_for_context(Context& context, const HostWork::Mark& before,
                                      EpochNumber epoch, Counter reason, Waited waited) {
  const Waiting waiting;
  const std::uint64_t start = util::now_ns();
  const WaitResult result = context.ordering().wait(epoch);
  if (result.waited) count_wait(context.stats(), reason, start, waited);
  if (result.complete()) {
    context.host_work().end_context_wait(before);
    ThreadOrder::has_waited_for_context(context.handle());
  }
  idle_.cache_reclaimed(context);
  return result;
}

std::uint64_t FreeWait::pending_limit(Context& context, std::uint64_t bytes_freed) {
  const std::uint64_t threads = context.threads().caches().in_use();
  const ThreadCache::Limits one = limits_of_thread(context);
  const std::uint64_t untold = threads * static_cast<std::uint64_t>(one.tally);
  // Batches of many threads reach a low limit even where the GPU keeps up.
  const std::uint64_t of_threads =
      std::min(threads * kBatchesPending * one.batch, context.device().limits().max_pending);
  const std::uint64_t all =
      std::max(context.device().budget().pending_bound(untold + bytes_freed), of_threads);
  return all - std::min(all / 4, threads * one.few) + (bytes_freed > one.few ? bytes_freed : 0);
}

CUresult FreeWait::bound_pending(Context& context, std::uint64_t bytes_freed, Waited before) {
  const std::uint64_t limit = pending_limit(context, bytes_freed);
  Ordering& ordering = context.ordering();
  if (ordering.epochs().pending_bytes() <= limit) return CUDA_SUCCESS;
  const Waiting waiting;
  const std::uint64_t start = util::now_ns();
  WaitResult result;
  Budget& budget = context.device().budget();
  bool waited = false;
  bool ran_dry = false;
  // Other threads may free as much meanwhile: a wait for what is pending now is enough. Its fence
  // is recorded before any wait: one recorded later would cover what others submit meanwhile, which
  // may wait for this thread.
  const EpochNumber all = ordering.newest();
  ordering.fence(all);
  while (ordering.epochs().pending_bytes() > limit && ordering.epochs().complete_up_to() < all) {
    const EpochNumber before_wait = ordering.epochs().complete_up_to();
    result = ordering.wait_for_oldest(budget.pending_may_grow() ? &ran_dry : nullptr);
    waited = waited || result.waited;
    if (!result.complete()) break;
    // Without host memory the open epoch may have stayed open, and another wait would do no more.
    if (ordering.epochs().complete_up_to() == before_wait) break;
  }
  if (waited) {
    budget.count_wait(ran_dry);
    count_wait(context.stats(), Counter::free_waits_pending_limit_total, start, before);
    if (before == Waited::no_and_counted) ordering.epochs().stalls_avoided().discount();
  }
  idle_.cache_reclaimed(context);
  return result.error;
}

void FreeWait::count_wait(DeviceStats& stats, Counter reason, std::uint64_t start_ns,
                          Waited before) {
  const std::uint64_t waited_ns = util::now_ns() - start_ns;
  stats.add(Counter::free_wait_ns_total, waited_ns);
  if (before != Waited::yes) {
    stats.add(Counter::free_waits_total);
    stats.add(reason);
  }
  stats::this_thread().add_wait(waited_ns, before != Waited::yes ? 1 : 0);
  if (waited_ns >= stats::kShortestWaitNs) {
    stats::note_event(stats::EventKind::wait, stats, 0, waited_ns);
  }
}

CUresult FreeWait::answer_of_free(Context& context, std::uint64_t life, CUresult error) {
  if (error == CUDA_SUCCESS) return CUDA_SUCCESS;
  note_failure(context, life, error);
  if (cuda::is_final(error)) return error;
  // cupool's failure, not the program's: the block stays retired and is not reused.
  CUPOOL_WARN_ONCE(
      "a free could not wait for the GPU (error %d); its block is set aside, and not reused. "
      "CUPOOL_ENABLE=0 turns cupool off",
      static_cast<int>(error));
  return CUDA_SUCCESS;
}

}  // namespace cupool::engine
