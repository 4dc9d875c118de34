// SPDX-License-Identifier: Apache-2.0
// Opening, marking and leaving the lane, and returning to it.
//
// Who leaves publishes it, and then has streams wait for the mark. Who frees looks at LaneWork
// first, which knows only marks that are recorded, and at `word_` second. So if a free still finds
// the lane open, the mark that covers it was recorded before the leaving. A mark in progress covers
// nobody.
//
// While the process is away, work outside is counted before it is submitted, and has an event after
// it. The process returns when there are no such calls and all events are complete. Then no work is
// pending but in the lane's stream, and the first free marks it.
#include "engine/reclaim/lane.h"

#include <array>
#include <tuple>

#include <mutex>

#include "config/settings.h"
#include "cuda/capture_state.h"
#include "engine/reclaim/calls_under_way.h"
#include "engine/reclaim/dependent_launches.h"
#include "engine/reclaim/lane_history.h"
#include "engine/reclaim/lane_stalls.h"
#include "engine/reclaim/other_streams.h"
#include "engine/reclaim/pending_work.h"
#include "engine/reclaim/serving.h"
#include "engine/reclaim/unseen_work.h"
#include "util/clock.h"
#include "util/lock_order.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

alignas(128) std::atomic<std::uint64_t> Lane::word_{kNoWork};
std::atomic<CUcontext> Lane::context_{nullptr};

namespace {

// Work outside that takes this long is not for a moment: the lane is left for good.
constexpr std::uint64_t kLongestAwayNs = 1'000'000'000;
// The process asks whether it may return once away for another 16th of the time.
constexpr std::uint64_t kLookShare = 16;

// Guards opening, leaving and returning.
util::Ranked<util::LockRank::lane> change_mutex;
OtherStreams others;
std::atomic<std::uint64_t> opened_ns{0};
std::atomic<std::uint64_t> away_since_ns{0};
std::atomic<std::uint64_t> next_look_ns{0};
std::atomic<bool> several_seen{false};

// Contexts other than the lane's, until they end. Names: they order nothing.
std::array<std::atomic<CUcontext>, std::tuple_size_v<SeenContexts>> others_seen{};
std::atomic<bool> too_many_seen{false};

void note_other(CUcontext context) {
  for (auto& seen : others_seen) {
    CUcontext found = seen.load(std::memory_order_relaxed);
    if (found == context) return;
    if (found == nullptr &&
        seen.compare_exchange_strong(found, context, std::memory_order_relaxed)) {
      return;
    }
    if (found == context) return;
  }
  too_many_seen.store(true, std::memory_order_release);
}

void forget_other(CUcontext context) {
  for (auto& seen : others_seen) {
    CUcontext found = context;
    seen.compare_exchange_strong(found, nullptr, std::memory_order_relaxed);
  }
}

const char* text_of(Lane::End end) {
  switch (end) {
    case Lane::End::off:
      return "excluded by the settings or by plain memory";
    case Lane::End::second_stream:
      return "work on other streams";
    case Lane::End::per_thread:
      return "work on a per-thread default stream";
    case Lane::End::context:
      return "another context";
    case Lane::End::context_end:
      return "the end of its context";
    case Lane::End::destroyed:
      return "its stream was destroyed";
    case Lane::End::unknown_work:
      return "work whose stream is not known";
    case Lane::End::unseen_work:
      return "work that came by no hooked route";
    case Lane::End::failure:
      return "the driver refused to record an event";
  }
  return "";
}

// In a process that cupool does not serve captures are not counted, and an event that is recorded
// into one breaks it.
bool is_wanted() {
  const config::Settings& settings = config::settings();
  return settings.enable && settings.mode == config::Mode::pool && settings.lane &&
         settings.free_mode != config::FreeMode::sync;
}

// That of the work which is submitted to `stream`; null if there is none.
CUcontext context_of(const cuda::Driver& driver, CUstream stream) {
  CUcontext context = nullptr;
  const CUresult result = stream == CU_STREAM_LEGACY || driver.cuStreamGetCtx == nullptr
                              ? driver.cuCtxGetCurrent(&context)
                              : driver.cuStreamGetCtx(stream, &context);
  return result == CUDA_SUCCESS ? context : nullptr;
}

}  // namespace

// The lane's own stream never waits for the mark while the process is away: a thread that takes the
// mark for complete then may be too late, when the process has returned and marked again. So might
// one whose call came before there was a lane, and which need not wait: its stream was the lane's
// next, or had to be complete before.
Lane::Work Lane::admit(const cuda::Driver& driver, CUstream stream, const char* call) {
  // What a capture records is not submitted. Its graph is, when it is launched.
  if (Serving::any_capture() && cuda::is_capturing(driver, stream).value_or(false)) {
    return Work::none;
  }
  Work work = Work::none;
  {
    const std::lock_guard lock(change_mutex);
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    if (word == key_of(stream)) return Work::inside;
    if (word == kAway && LaneMark::place().stream == stream) {
      try_to_return(driver);
      return Work::inside;
    }
    if (word != kLeft && go_outside(driver, stream, call)) work = Work::outside;
    if (work == Work::outside && word == kNoWork) return work;
  }
  LaneMark::order_behind(driver, stream);
  return work;
}

// Under the lock, when all work but that of the stream is complete.
void Lane::open(CUcontext context, CUstream stream) {
  LaneMark::begin(context, stream);
  const std::uint64_t now = util::now_ns();
  opened_ns.store(now, std::memory_order_relaxed);
  LaneHistory::opened(now);
  LaneWork::submitted();
  word_.store(key_of(stream), std::memory_order_release);
}

// True: the call is counted, and the process is away, or has no lane yet. The lane opens with the
// first call to the program's main stream while nothing else is pending.
bool Lane::go_outside(const cuda::Driver& driver, CUstream stream, const char* call) {
  const std::uint64_t word = word_.load(std::memory_order_relaxed);
  if (word == kNoWork && !is_wanted()) {
    leave_locked(End::off, call);
    return false;
  }
  const CUcontext context = context_of(driver, stream);
  if (context == nullptr && word == kNoWork) return false;  // the driver refuses the work
  CUcontext known = nullptr;
  context_.compare_exchange_strong(known, context, std::memory_order_relaxed);
  End why = End::second_stream;
  if (stream == CU_STREAM_PER_THREAD) {
    why = End::per_thread;
  } else if (known != nullptr && known != context) {
    why = End::context;
    note_other(context);
    several_seen.store(true);
  } else if (others.begin(driver, stream, call)) {
    if (word == kNoWork) {
      if (others.is_main(stream) && others.are_complete_but(driver, stream)) open(context, stream);
    } else if (word != kAway) {
      close(kAway);
      const std::uint64_t now = util::now_ns();
      away_since_ns.store(now, std::memory_order_relaxed);
      LaneHistory::away(now, call);
      next_look_ns.store(0, std::memory_order_relaxed);
      CUPOOL_LOG(debug, "the process is away from its one lane: %s", call);
    }
    return true;
  }
  leave_locked(why, call);
  return false;
}

void Lane::submitted_outside(const cuda::Driver& driver, CUstream stream) {
  others.end(driver, context_.load(std::memory_order_relaxed), stream);
  LaneWork::submitted();  // the lane may have been opened for this stream meanwhile
}

// Threads still report work after calls that began while the process was away.
void Lane::try_to_return(const cuda::Driver& driver) {
  const std::uint64_t now = util::now_ns();
  if (now < next_look_ns.load(std::memory_order_relaxed)) return;
  if (!others.are_complete_but(driver, LaneMark::place().stream)) {
    const std::uint64_t away = now - away_since_ns.load(std::memory_order_relaxed);
    next_look_ns.store(now + away / kLookShare, std::memory_order_relaxed);
    if (away > kLongestAwayNs) leave_locked(End::second_stream);
    return;
  }
  if (LaneMark::is_stale()) return leave_locked(End::failure);
  LaneWork::submitted();
  word_.store(key_of(LaneMark::place().stream), std::memory_order_release);
  LaneHistory::returned(now);
}

void Lane::leave(End why, const char* call) {
  if (why == End::off || why == End::unknown_work || why == End::unseen_work) {
    PendingWork::distrust();
  }
  // Whoever finds that another thread has left relies on it as on its own: what is asked next, such
  // as whether a mark is under way, must not have been answered before.
  if (word_.load(std::memory_order_seq_cst) == kLeft) return;
  const std::lock_guard lock(change_mutex);
  if (word_.load(std::memory_order_relaxed) != kLeft) leave_locked(why, call);
}

// From here on no free is covered, and other streams wait for the mark. Who sees the word, but not
// yet which mark, has to come to the lock that the caller holds.
void Lane::close(std::uint64_t word) {
  const bool was_open = is_key(word_.load(std::memory_order_relaxed));
  if (was_open) LaneMark::await(true);
  word_.store(word, std::memory_order_seq_cst);
  if (!was_open) return;
  if (CUPOOL_MUTATED("marks-when-leaving")) LaneMark::record(*cuda::driver());
  // Lowered only: since the word, a context that ends may have forgotten the mark.
  if (LaneMark::number() == 0 || CUPOOL_MUTATED("leaves-without-a-wait")) LaneMark::await(false);
}

void Lane::leave_locked(End why, const char* call) {
  const bool was_ever_open = word_.load(std::memory_order_relaxed) > kLeft;
  close(kLeft);
  const std::uint64_t now = util::now_ns();
  LaneHistory::left(now, text_of(why), call);
  if (!was_ever_open) return;
  CUPOOL_LOG(info, "the process has left its one lane after %.1f s: %s%s%s",
             static_cast<double>(now - opened_ns.load(std::memory_order_relaxed)) / 1e9,
             text_of(why), call == nullptr ? "" : ", by ", call == nullptr ? "" : call);
}

void Lane::leave_unknown(const cuda::Driver& driver, const char* call) {
  PendingWork::distrust();
  if (is_over()) return;
  leave(End::unknown_work, call);
  LaneMark::wait(driver);
}

bool Lane::covers_free(const cuda::Driver& driver, stats::DeviceStats* stats) {
  if (!LaneWork::any()) return is_open();
  if (!is_open()) return false;
  bool marked = false;
  bool unseen = false;
  {
    const LaneMark::Use use;
    if (!is_open() || !Serving::open_for_certain()) return false;
    LaneMark::count();
    LaneWork::Claim claim(true);
    marked = CUPOOL_MUTATED("frees-without-a-mark") || LaneMark::record(driver);
    // A mark that comes behind the lane's end may be one that nobody awaits.
    if (marked && is_open()) claim.settle();
    const std::uint64_t now = util::now_ns();
    const auto [context, stream] = LaneMark::place();
    // Beside a call under way marks follow one another without new work.
    if (marked && stats != nullptr && claim.is_first())
      LaneStalls::freed(driver, context, stream, *stats, now);
    unseen = UnseenWork::look(driver, context, stream, now);
  }
  if (!marked) leave(End::failure);
  if (unseen) {
    leave(End::unseen_work);
    CUPOOL_WARN_ONCE(
        "work reaches the GPU by a route that cupool does not see (a library loaded with "
        "RTLD_DEEPBIND, for example): freed memory is no longer reused in the order of one stream. "
        "CUPOOL_LANE=0 has it so from the start");
  }
  return marked && is_open();
}

// Also when the lane is over: a call that began before may not have returned.
void Lane::destroys(CUstream stream) {
  others.destroys(stream);
  if (LaneMark::place().stream != stream) return;
  leave(End::destroyed);
  LaneMark::forget_stream();
}

void Lane::context_seen(CUcontext context, Seen seen) {
  CUcontext known = context_.load(std::memory_order_relaxed);
  if (context == nullptr || context == known) return;
  if (known == nullptr &&
      context_.compare_exchange_strong(known, context, std::memory_order_relaxed)) {
    return;
  }
  if (known == context) return;
  if (seen == Seen::current) note_other(context);
  several_seen.store(true);
  leave(End::context);
}

void Lane::context_ends(const cuda::Driver* driver, CUcontext context) {
  forget_other(context);
  if (context_.load(std::memory_order_relaxed) != context) return;
  leave(End::context_end);
  if (driver != nullptr) LaneMark::wait(*driver);
  LaneMark::forget();
  UnseenWork::reset();
  LaneStalls::reset();
}

void Lane::end_without_lock() {
  word_ = kLeft;
  others.end_without_lock();
  LaneMark::reset();
}

void Lane::reset() {
  word_ = kNoWork;
  context_ = nullptr;
  several_seen = false;
  for (auto& seen : others_seen) seen = nullptr;
  too_many_seen = false;
  LaneWork::reset();
  CallsUnderWay::reset();
  opened_ns = 0;
  others.reset();
  LaneHistory::reset();
  LaneMark::reset();
  UnseenWork::reset();
  LaneStalls::reset();
  DependentLaunch::reset();
  PendingWork::reset();
}

bool several_contexts() {
  return several_seen.load(std::memory_order_acquire);
}

std::optional<SeenContexts> other_contexts_seen() {
  if (too_many_seen.load(std::memory_order_acquire)) return std::nullopt;
  SeenContexts seen{};
  for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = others_seen[i].load();
  return seen;
}

}  // namespace cupool::engine
