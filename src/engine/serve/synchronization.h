// SPDX-License-Identifier: Apache-2.0
// The program's own waits: they complete the frees and copies made before them.
#pragma once

#include "engine/context/context_registry.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/legacy_stream.h"
#include "engine/reclaim/pending_work.h"
#include "engine/serve/failure.h"
#include "engine/serve/idle_memory.h"
#include "engine/serve/messages.h"
#include "stats/device_stats.h"
#include "util/clock.h"

namespace cupool::engine {

/// Thread-safe.
class Synchronization {
 public:
  Synchronization(ContextRegistry& registry, IdleMemory& idle, FreePolicy& policy)
      : registry_(registry), idle_(idle), messages_(registry, idle, policy) {}

  /// The wait of a call of MPI.
  Messages& messages() { return messages_; }

  /// Whether a call that failed is counted: not if the caller repeats it.
  enum class Failure { counted, repeated };

  /// Runs the program's synchronisation of `context` (null: a context cupool does not serve).
  template <typename Call>
  CUresult of_context(Context* context, Failure failure, const Call& real) {
    if (context == nullptr) return real();
    const std::uint64_t start = util::now_ns();
    const std::uint64_t life = context->incarnation();
    context->threads().drain(Drain::flush);
    const EpochNumber before = context->ordering().begin_synchronize();
    const HostWork::Mark host_work = context->host_work().begin_wait();
    LaneWork::Claim claim(Lane::is_in(context->handle()));
    PendingWork::Claim all(!several_contexts());
    const CUresult result = real();
    if (result == CUDA_SUCCESS || failure == Failure::counted) {
      context->stats().add(stats::Counter::synchronize_calls_total);
      context->stats().call_times().synchronize.record(util::now_ns() - start);
    }
    if (result == CUDA_SUCCESS && !Serving::stepped_aside()) {
      claim.settle();
      all.settle();
      ThreadOrder::has_waited_for_context(context->handle());
      context->ordering().end_synchronize(before);
      context->host_work().end_context_wait(host_work);
      idle_.cache_reclaimed(*context);
    } else if (result == CUDA_SUCCESS) {
      // A green context's wait may be for its own work alone, so it completes nothing.
      idle_.cache_reclaimed(*context);
    } else {
      note_failure(*context, life, result);
    }
    return result;
  }

  /// Runs the program's wait for `stream`, an explicit handle: frees need not wait for its copies
  /// again. A wait for the legacy stream may cover all retired blocks. Another stream is identified
  /// only by its handle: a stream of a context other than the current one is not found.
  template <typename Call>
  CUresult of_stream(CUstream stream, const Call& call) {
    const auto real = [&] {
      LaneWork::Claim claim(Lane::holds(stream));
      const CUresult result = call();
      // With a green context current, a default stream is another one.
      if (result == CUDA_SUCCESS && !Serving::stepped_aside()) {
        claim.settle();
        ThreadOrder::has_waited_for(stream);
      }
      return result;
    };
    Context* const context = registry_.current();
    if (context == nullptr) return real();
    if (stream == CU_STREAM_LEGACY && LegacyStream::covers_context()) {
      return of_legacy_stream(*context, real);
    }
    HostWork& host_work = context->host_work();
    if (!host_work.maybe_pending() || Serving::stepped_aside()) return real();
    const HostWork::Mark before = host_work.begin_wait();
    const CUresult result = real();
    if (result == CUDA_SUCCESS) host_work.end_stream_wait(stream, before);
    return result;
  }

  /// Runs the program's wait for the legacy stream of `context`, its current one.
  template <typename Call>
  CUresult of_legacy_stream(Context& context, const Call& real) {
    StreamWait wait;
    if (!begin_stream_wait(context, &wait)) return real();
    const CUresult result = real();
    // Asked last; see LegacyStream.
    if (result == CUDA_SUCCESS && LegacyStream::covers_context()) end_stream_wait(context, wait);
    return result;
  }

 private:
  /// The coverage of a wait for the legacy stream.
  struct StreamWait {
    BatchNumber batch = kNoBatch;   ///< of the calling thread
    EpochNumber before = kNoEpoch;  ///< kNoEpoch: no epoch is pending
    HostWork::Mark host_work;
  };
  bool begin_stream_wait(Context& context, StreamWait* wait);
  void end_stream_wait(Context& context, const StreamWait& wait);

  ContextRegistry& registry_;
  IdleMemory& idle_;
  Messages messages_;
};

}  // namespace cupool::engine
