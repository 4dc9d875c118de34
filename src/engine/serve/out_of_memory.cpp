// SPDX-License-Identifier: Apache-2.0
// Second attempts of calls that ran out of memory, and the memory given back for them.
#include "engine/serve/out_of_memory.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <thread>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/reclaim/serving.h"
#include "engine/serve/failure.h"
#include "stats/pool_growth.h"
#include "stats/timeline.h"
#include "util/clock.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;
using stats::EventKind;
using stats::Gauge;

namespace {

// Reclaimed blocks are in no list, where other threads could find them, until their thread has
// cached them. That is short unless the thread is off its processor. Chosen, not measured.
constexpr std::chrono::microseconds kMomentsForOthers[] = {std::chrono::microseconds(500),
                                                           std::chrono::microseconds(4000)};

// The longest wait for the GPU when another process asks. The exit of the program waits for it.
constexpr std::uint64_t kPatienceForNeighboursNs = 50'000'000;

// The longest wait for what the program had freed before it ends a context. Its frees would have
// waited without a limit, but now later work is waited for as well.
constexpr std::uint64_t kPatienceAtTheEndNs = 1'000'000'000;

// A refusal may pass, and whoever asks has no second chance.
bool can_make_event(const cuda::Driver& driver, Context& context) {
  constexpr int kAttempts = 3;
  const cuda::RelaxedCaptureScope relaxed(driver);
  const cuda::ContextScope scope(driver, context.handle());
  CUevent event = nullptr;
  for (int attempt = 0; scope.ok() && attempt < kAttempts; ++attempt) {
    if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) continue;
    driver.cuEventDestroy_v2(event);
    return true;
  }
  return false;
}

}  // namespace

CUresult OutOfMemory::retry_here(const Attempt& real, Patience& patience) try {
  Context* context = registry_.current();
  if (context == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!context->usable()) return real();  // not until after the first attempt: the error (I7)
  return retry_in(*context, real, patience);
} catch (const std::bad_alloc&) {
  return real.last();
}

CUresult OutOfMemory::retry_of(int ordinal, const Attempt& real, Patience patience) try {
  const auto contexts = registry_.contexts_of(ordinal);
  for (Context* context : contexts) {
    if (context->usable()) return retry_in(*context, real, patience);
  }
  if (contexts.begin() != contexts.end()) {  // likewise
    const CUresult result = real();
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  }
  if (ordinal < 0 || ordinal >= stats::kMaxDevices) return CUDA_ERROR_OUT_OF_MEMORY;
  return ask_neighbours(registry_.devices().of(ordinal), real, patience);
} catch (const std::bad_alloc&) {
  return real.last();
}

CUresult OutOfMemory::retry_where_short(const Attempt& real, Patience& patience,
                                        const Device* only) try {
  if (room_.beside_idle_memory(only, patience.wanted_bytes())) {
    const CUresult result = real();  // another thread may just have given memory back
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    if (room_.beside_idle_memory(only, patience.wanted_bytes())) return result;
  }
  if (only != nullptr) return retry_of(only->ordinal(), real, patience);
  Context* context = registry_.current();
  const Device* first = context == nullptr ? nullptr : &context->device();
  patience.left_ns();  // one time for all devices
  CUresult result = retry_here(real, patience);
  for (const Device* device : registry_.devices().all()) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY) break;
    if (device != first) result = retry_of(device->ordinal(), real, patience);
  }
  return result;
} catch (const std::bad_alloc&) {
  return real.last();
}

CUresult OutOfMemory::retry_in(Context& context, const Attempt& real, Patience& patience) {
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  const auto has_room = [&] { return room_.is_there(context.device(), patience.wanted_bytes()); };
  const bool had_room = has_room();
  std::uint64_t tried_ns = util::now_ns() - kLongestCallNs;
  for (int round = 0; result == CUDA_ERROR_OUT_OF_MEMORY && round < kRetries; ++round) {
    // Once on each device even where the call has no patience left: what is complete needs none.
    if (round != 0 && patience.over() && !patience.hurries()) break;
    if (!more_given_back(context, &tried_ns, patience)) break;
    result = real();
  }
  // A sticky error may have kept memory back. Then the program gets that error (I7).
  const bool answered = context.usable() && !cuda::shut_down();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && !answered) result = real();
  // With room for it, neither a neighbour's memory nor a stream's is the cause, unless the room is
  // newer than the refusal.
  const auto is_refused_beside_room = [&] {
    return result == CUDA_ERROR_OUT_OF_MEMORY && answered && has_room();
  };
  if (is_refused_beside_room()) {
    if (!had_room) result = real();
    if (had_room || is_refused_beside_room()) return result;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY && answered) {
    result = ask_neighbours(context.device(), real, patience);
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) make_spare_streams(context);
  if (result == CUDA_SUCCESS) {
    context.stats().add(Counter::oom_rescues_total);
    stats::note_event(EventKind::oom_rescue, context.stats(), 0);
  }
  return result;
}

// Several attempts, because the neighbours need memory themselves.
CUresult OutOfMemory::ask_neighbours(Device& device, const Attempt& real, Patience& patience) {
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  Asking asking;
  while (result == CUDA_ERROR_OUT_OF_MEMORY && neighbours_gave(device, patience, &asking)) {
    result = real();
  }
  return result;
}

// The pools are those of all contexts of the device, of which one may be about to end.
void OutOfMemory::end_preallocation(Context& context) {
  PoolBackend* const pools = context.device().pools();
  if (pools == nullptr) return;
  const auto end_in = [&](Context& each) {
    const ContextVisit visit(each, kShortNs);
    if (visit) pools->preallocation().end(each);
    return static_cast<bool>(visit);
  };
  if (end_in(context)) return;
  for (Context* const other : registry_.contexts_of(context.device().ordinal())) {
    if (end_in(*other)) return;
  }
}

bool OutOfMemory::give_back_idle(Context& context, Patience& patience) {
  Device& device = context.device();
  end_preallocation(context);
  const auto returned = [&] { return device.stats().value(Counter::returned_bytes_total); };
  const std::uint64_t returned_before = returned();
  bool any = idle_.release_ended_leases();
  for (Context* other : registry_.contexts_of(device.ordinal())) {
    bool enough = false;
    any = give_back_idle_of(*other, patience, &enough) || any;
    if (enough) break;
    any = close_small_chunk(*other, patience) || any;
  }
  // Counts released cached blocks, and blocks that were never cached, which are released as soon as
  // they are reclaimed.
  return any || returned() != returned_before;
}

std::uint64_t OutOfMemory::trim_default_pool(Device& device) {
  DefaultPool& pool = device.default_pool();
  if (!pool.is_kept() || CUPOOL_MUTATED("forgets-the-default-pool")) return 0;
  GivingBack part(idle_.give_backs());
  const std::uint64_t bytes = pool.trim();
  part.gave_back = bytes != 0;
  if (bytes == 0) return 0;
  device.stats().add(Counter::trims_total);
  stats::note_event(EventKind::trim, device.stats(), 0);
  return bytes;
}

void OutOfMemory::trim_if_unclear() {
  Context* const context = registry_.current();
  if (context == nullptr) return;
  Device& device = context->device();
  if (async_.idle().bytes(device) >= stats::kPoolGrowthStep) {
    async_.idle().give_back_of(device.ordinal(), context);
  }
  if (!device.default_pool().fill().is_unclear()) return;
  if (CUPOOL_MUTATED("counts-fragments") || CUPOOL_MUTATED("counts-no-default-pool")) return;
  trim_default_pool(device);
}

// Stream-ordered memory that needs no wait. Returns the bytes.
std::uint64_t OutOfMemory::give_back_done(Device& device, AsyncIdle::Look look) {
  std::uint64_t gave = 0;
  for (Context* const each : registry_.contexts_of(device.ordinal())) {
    gave += async_.idle().give_back(*each, AsyncIdle::To::device, kShortNs, look).blocks;
  }
  const bool may_have_more = gave != 0 || look != AsyncIdle::Look::none;
  return may_have_more ? std::max(gave, trim_default_pool(device)) : 0;
}

// What the driver lacks it may look for in its own pools until another stream's kernel is over,
// when it refuses (measured): to the driver, memory in the caches of streams is in use.
void OutOfMemory::before_driver_call(Context* context, std::uint64_t bytes) {
  if (context == nullptr || CUPOOL_MUTATED("asks-before-it-gives-back")) return;
  Device& device = context->device();
  if (async_.idle().bytes(device) < stats::kPoolGrowthStep || !room_.lacks(device, bytes)) return;
  give_back_done(device, AsyncIdle::Look::for_a_moment);
}

// Whether the call is worth another attempt now that so much has gone back.
bool OutOfMemory::may_do(Device& device, std::uint64_t gave, Patience& patience) {
  const std::uint64_t wanted = patience.wanted_bytes();
  if (gave == 0) return false;
  const bool may = wanted == 0 || gave >= wanted || room_.is_just_there(device, wanted);
  return may && patience.may_hurry();
}

bool OutOfMemory::give_back_idle_of(Context& context, Patience& patience, bool* enough) {
  const auto give_back = [&] { return give_back_cached(context); };
  bool gave = false;
  // Work goes on in one stream, which may wait for what the program does next, while another stream
  // comes to have nothing left. For a call of unknown size, that is no reason to stop.
  const auto is_enough_meanwhile = [&] {
    const std::uint64_t bytes = give_back_done(context.device(), AsyncIdle::Look::none);
    gave = gave || bytes != 0;
    *enough = patience.wanted_bytes() != 0 && may_do(context.device(), bytes, patience);
    return *enough;
  };
  return reclaim_all_of(context, patience, give_back, is_enough_meanwhile) || gave;
}

// Waits for the GPU in short visits, so that the context can end between them. No longer than until
// `meanwhile()`.
template <typename GiveBack, typename Meanwhile>
bool OutOfMemory::reclaim_all_of(Context& context, Patience& patience, const GiveBack& give_back,
                                 const Meanwhile& meanwhile) {
  Ordering& ordering = context.ordering();
  EpochNumber newest = kNoEpoch;
  for (bool drained = false;; drained = true) {
    const std::uint64_t left_ns = std::max<std::uint64_t>(patience.left_ns(), 1);
    const ContextVisit visit(context, std::min(left_ns, kLongestWaitForOthersNs));
    if (!visit || !context.usable()) return false;
    if (CUPOOL_MUTATED("steps-aside-with-its-memory") && Serving::stepped_aside()) return false;
    if (!drained) {
      context.threads().drain(Drain::all);
      idle_.retire_cached(context);
      newest = ordering.newest();
      // A refusal of a fence may pass: wait() makes one more attempt, after which it waits for all
      // work. For memory of streams the driver alone would not: only for a fence.
      const EpochNumber idle = async_.idle().covering_epoch(context);
      const bool is_fenced = ordering.fence(std::max(idle, newest));
      if (idle > newest && (is_fenced || ordering.fence(idle))) newest = idle;
    }
    const auto wait = [&] { return ordering.wait(newest, std::min(left_ns, kOneVisitNs)); };
    WaitResult result = wait();
    if (cuda::is_refusal(result.error)) result = wait();  // a refusal may pass
    // When patience is over, blocks that are complete by then are still released.
    if (result.worth_repeating() && !patience.over() && !meanwhile()) continue;
    if (result.error != CUDA_SUCCESS) note_failure(context, result.error);
    if (!context.usable() || cuda::shut_down()) return false;
    idle_.cache_reclaimed(context);
    return give_back();
  }
}

// Closes the chunk only when nothing is live: the driver alone would have none open then either.
// Its free waits for the GPU, so the GPU has to be idle first, which the driver's own last free
// would have waited for. In short visits, as above; only the first one if the chunk would not do.
bool OutOfMemory::close_small_chunk(Context& context, Patience& patience) {
  Ordering& ordering = context.ordering();
  EpochNumber everything = kNoEpoch;
  for (;;) {
    const std::uint64_t left_ns = std::max<std::uint64_t>(patience.left_ns(), 1);
    const ContextVisit visit(context, std::min(left_ns, kLongestWaitForOthersNs));
    if (!visit || !context.usable()) return false;
    const bool live = context.stats().value(Gauge::application_bytes).current > 0 ||
                      context.stats().value(Gauge::passthrough_bytes).current > 0;
    if (live || !context.small_chunk().is_open()) return false;
    if (everything == kNoEpoch) everything = ordering.epochs().open();
    if (!ordering.fence(everything)) return false;
    const WaitResult result = ordering.wait(everything, std::min(left_ns, kOneVisitNs));
    const bool goes_on = result.worth_repeating() && !patience.over();
    if (goes_on && context.small_chunk().may_decide(patience.wanted_bytes())) continue;
    return result.complete() && context.small_chunk().close();
  }
}

bool OutOfMemory::give_back_cached(Context& context) {
  Device& device = context.device();
  std::optional<GivingBack> giving_back;
  if (context.cache().bytes() != 0) giving_back.emplace(idle_.give_backs());
  BlockList idle = context.cache().evict_to(0);
  idle_.release(context, idle);
  device.orphans().release(driver_, context, device.pools());
  const bool gave = async_.idle().give_back(context, AsyncIdle::To::device).blocks != 0;
  const bool trimmed = trim_default_pool(device) != 0 || gave;
  const stats::PoolFigures before = device.pool_figures();
  // A pool keeps a growth step or more only if that memory could go back to the device.
  const bool slack = before.reserved_current >= before.used_current + stats::kPoolGrowthStep;
  if (slack && !giving_back) giving_back.emplace(idle_.give_backs());
  device.trim(context);
  device.stats().add(Counter::trims_total);
  stats::note_event(EventKind::trim, device.stats(), 0);
  const bool shrunk = device.pool_figures().reserved_current < before.reserved_current;
  if (giving_back) giving_back->gave_back = shrunk;
  return shrunk || trimmed;
}

// Plain memory stays, because its release waits for the GPU.
bool OutOfMemory::give_back_pooled(Context& context) {
  BlockList evicted = context.cache().evict_to(0);
  BlockList plain;
  BlockList pooled;
  while (Block* block = evicted.pop()) {
    (block->source == BlockSource::pool ? pooled : plain).push(block);
  }
  if (!plain.empty()) context.cache().cache(plain);
  const bool any = !pooled.empty();
  idle_.release(context, pooled);
  return any;
}

// Plain memory goes with the context. Where no event can be made, the wait would be one for the
// whole context, for which the end has no time to lose.
void OutOfMemory::context_ends(Context& context) {
  Device& device = context.device();
  if (device.pools() == nullptr || !context.usable() || cuda::shut_down() ||
      Serving::any_capture() || CUPOOL_MUTATED("keeps-past-the-last-context")) {
    return;
  }
  for (const Context* other : registry_.contexts_of(device.ordinal())) {
    if (other != &context) return;
  }
  const auto give_back = [&] {
    const bool pooled = give_back_pooled(context);
    device.trim(context);
    return pooled;
  };
  if (can_make_event(driver_, context)) {
    Patience patience(kPatienceAtTheEndNs);
    reclaim_all_of(context, patience, give_back, [] { return false; });
  } else if (const ContextVisit visit(context); visit) {
    give_back();
  }
}

std::optional<std::uint64_t> OutOfMemory::give_to_neighbour(const channel::DeviceId& device,
                                                            std::uint64_t wanted_bytes) {
  std::uint64_t given = 0;
  bool shares_device = false;
  for (Device* each : registry_.devices().all()) {
    PoolBackend* const pools = each->pools();
    if (each->limits().use_default_pool) continue;
    const bool holds_other = each->default_pool().is_kept() || async_.idle().bytes(*each) != 0;
    if (pools == nullptr && !holds_other) continue;
    if (each->id() != device) continue;
    shares_device = true;
    GivingBack part(idle_.give_backs());
    const auto is_enough = [&] { return wanted_bytes != 0 && given >= wanted_bytes; };
    const auto trim = [&](Context& context) {
      const ContextVisit visit(context, kPatienceForNeighboursNs);
      if (!visit || !context.usable() || Serving::any_capture()) return false;
      given += async_.idle().give_back(context, AsyncIdle::To::device).device;
      given += trim_default_pool(*each);
      if (is_enough() || pools == nullptr) return is_enough();
      const std::uint64_t before = each->pool_figures().reserved_current;
      pools->trim_beyond_preallocation(context);
      const std::uint64_t after = each->pool_figures().reserved_current;
      each->stats().add(Counter::trims_total);
      stats::note_event(EventKind::trim, each->stats(), 0);
      given += before - std::min(before, after);
      return is_enough();
    };
    Patience patience(kPatienceForNeighboursNs);
    for (Context* context : registry_.contexts_of(each->ordinal())) {
      if (patience.over() || trim(*context)) break;
      if (Serving::any_capture()) break;
      const auto any_complete = [&] {
        const bool pooled = give_back_pooled(*context);
        return pooled || async_.idle().bytes(*each) != 0;
      };
      const auto never = [] { return false; };
      if (reclaim_all_of(*context, patience, any_complete, never) && trim(*context)) break;
    }
    part.gave_back = given != 0;
    each->stats().add(Counter::given_to_neighbours_bytes_total, given);
  }
  return shares_device ? std::optional(given) : std::nullopt;
}

// A thread inside a context would hold its end up meanwhile. What neighbours use now may be idle in
// a moment, so the call is repeated until the time is over. They are asked although the call's own
// blocks may have taken all of its patience.
bool OutOfMemory::neighbours_gave(Device& device, Patience& patience, Asking* asking) {
  using ipc::Neighbours;
  using Answer = Neighbours::Answer;
  constexpr std::chrono::milliseconds kMoment{20};
  const std::uint64_t now = util::now_ns();
  if (asking->until_ns == 0) {
    if (ContextVisit::any_of_this_thread()) return false;
    const std::uint64_t least = Neighbours::kLongestAskNs;
    asking->since_ns = now;
    asking->until_ns = now + std::clamp(patience.left_ns(), least, Neighbours::kLongestWaitNs);
    device.stats().add(Counter::neighbours_asked_total);
  }
  if (now < asking->until_ns) {
    const Answer answer =
        neighbours_.ask(device.id(), patience.wanted_bytes(), asking->until_ns - now);
    if (answer == Answer::gave) return true;
    if (answer == Answer::nothing) return false;
    const util::Uncancelled throughout;
    std::this_thread::sleep_for(kMoment);
    return true;
  }
  neighbours_.give_up(device.id(), std::min(now - asking->since_ns, Neighbours::kLongestWaitNs));
  return false;
}

bool OutOfMemory::more_given_back(Context& context, std::uint64_t* tried_ns, Patience& patience) {
  const util::Uncancelled throughout;
  patience.begin_attempt();
  // What another thread is just giving back is in no figure.
  const Room::Outlook outlook = idle_.give_backs().any_under_way()
                                    ? Room::Outlook::give_back
                                    : room_.outlook(context, patience);
  if (outlook == Room::Outlook::hopeless) return false;
  if (outlook == Room::Outlook::try_again) {
    *tried_ns = util::now_ns();
    return true;
  }
  const auto look = [&] {
    patience.begin_attempt();
    const std::uint64_t gave = give_back_done(context.device(), AsyncIdle::Look::for_a_moment);
    if (may_do(context.device(), gave, patience)) return true;  // without a wait
    const bool any = give_back_idle(context, patience);
    if (patience.hurries()) return true;
    patience.attempts_on(context.device().ordinal()).any = true;
    const std::uint64_t longest = std::min(patience.left_ns(), kLongestWaitForOthersNs);
    const std::uint64_t start = util::now_ns();
    while (idle_.give_backs().any_under_way() && util::now_ns() - start < longest) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    // Who gives back says so there, this thread as well.
    return any || idle_.give_backs().last_ns() >= *tried_ns;
  };
  bool more = look();
  for (const auto moment : kMomentsForOthers) {
    if (more || context.threads().caches().in_use() < 2 || patience.over()) break;
    std::this_thread::sleep_for(moment);
    more = look();
  }
  *tried_ns = util::now_ns();
  return more;
}

void OutOfMemory::make_spare_streams(Context& context) {
  const ContextVisit visit(context, kShortNs);
  if (!visit || !context.usable()) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  if (!scope.ok()) return;
  context.streams().make_spares(
      [&](CUstream* stream) { return driver_.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING); });
}

bool OutOfMemory::destroy_spare_stream() {
  Context* context = registry_.current_for_certain();
  if (context == nullptr) return false;
  const ContextVisit visit(*context);
  const CUstream spare = visit && context->usable() ? context->streams().take_spare() : nullptr;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  return spare != nullptr && driver_.cuStreamDestroy_v2(spare) == CUDA_SUCCESS;
}

bool OutOfMemory::may_fit(Context* context, std::uint64_t bytes) {
  const std::uint64_t total = context == nullptr ? 0 : context->device().total_bytes();
  return total == 0 || bytes <= total;  // 0: not known
}

}  // namespace cupool::engine
