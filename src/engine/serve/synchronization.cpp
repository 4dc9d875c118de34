// SPDX-License-Identifier: Apache-2.0
// Effects of a wait for the legacy stream.
#include "engine/serve/synchronization.h"

namespace cupool::engine {

// Before the program's wait for the legacy stream. False: nothing is pending that the wait could
// complete, or the context is not the current one. The thread's batch stays as it is, since the
// thread frees nothing meanwhile; epochs cover the other pending blocks.
bool Synchronization::begin_stream_wait(Context& context, StreamWait* wait) {
  if (ThreadCache* const cache = last_thread_cache(context)) {
    const ThreadCache::Guard guard(*cache);
    wait->batch = cache->batch.number();
  }
  const bool epochs = context.ordering().epochs().pending_bytes() != 0;
  const bool pending = wait->batch != kNoBatch || epochs || context.host_work().maybe_pending() ||
                       context.host_work().needs_context();
  if (!pending || registry_.ask_for_current(context) != &context) return false;
  if (epochs) wait->before = context.ordering().begin_synchronize();
  wait->host_work = context.host_work().begin_wait();
  return true;
}

// The wait covered all work of the context, as far as the engine knows.
void Synchronization::end_stream_wait(Context& context, const StreamWait& wait) {
  if (Serving::stepped_aside()) return;  // it may be a green context's
  ThreadOrder::has_waited_for_context(context.handle());
  if (wait.before != kNoEpoch) context.ordering().end_synchronize(wait.before);
  context.host_work().end_context_wait(wait.host_work);
  idle_.cache_reclaimed(context);
  if (ThreadCache* const cache = last_thread_cache(context))
    idle_.reclaim(context, *cache, wait.batch);
}

}  // namespace cupool::engine
