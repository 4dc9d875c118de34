// SPDX-License-Identifier: Apache-2.0
// The streams of a thread and their points. All of it belongs to the calling thread; others only
// announce what concerns it (a destroyed stream, a capture, the end of a context).
#include "engine/context/thread_order.h"

#include <algorithm>
#include <array>
#include <new>

#include "config/settings.h"
#include "cuda/capture_state.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "cuda/stream_kind.h"
#include "engine/context/context.h"
#include "engine/context/device_waits.h"
#include "engine/context/points.h"
#include "engine/context/thread_slots.h"
#include "engine/context/thread_work.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/serving.h"
#include "engine/reclaim/stream_use.h"
#include "engine/reclaim/use_count.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {
namespace {

using cuda::is_default;
using thread_work::State;
using thread_work::Stream;
using thread_work::Whole;

// On the heap: a library that is opened late finds little room for thread-local data. Null: not
// needed yet, host memory is exhausted, or the thread's end cannot be seen.
thread_local State* own_state = nullptr;

bool has_state() {
  if (own_state != nullptr) return true;
  if (watch_thread_end()) own_state = new (std::nothrow) State;
  return own_state != nullptr;
}

// Threads that record an event on a stream that may begin to capture, in several cache lines.
struct alignas(128) Users {
  UseCount count;
};
std::array<Users, 16> users;

UseCount& own_users() {
  static std::atomic<unsigned> threads{0};
  thread_local const unsigned own = threads.fetch_add(1, std::memory_order_relaxed);
  return users[own % users.size()].count;
}

// The context of the work that is submitted to `stream` now; null: not known.
CUcontext context_of(const cuda::Driver& driver, CUstream stream) {
  CUcontext context = nullptr;
  const bool named = !is_default(stream) && driver.cuStreamGetCtx != nullptr;
  const CUresult result =
      named ? driver.cuStreamGetCtx(stream, &context) : driver.cuCtxGetCurrent(&context);
  return result == CUDA_SUCCESS ? context : nullptr;
}

// Whether `stream` has to be left alone. In a Use, a capture that it is not yet part of waits.
bool may_capture(const cuda::Driver& driver, CUstream stream) {
  return Serving::any_capture() && cuda::is_capturing(driver, stream).value_or(true);
}

template <typename Do>
void for_each_point(const Do& each) {
  for (Stream& stream : own_state->streams) each(stream.point);
  for (Whole& whole : own_state->wholes) each(whole.point);
}

// On the device, if nobody else is held up by it. What the driver refuses is waited for on the
// host.
void wait_for(const cuda::Driver& driver, const Stream& stream, Point& point) {
  bool ordered = false;
  const bool is_own = point.is_alive() && point.owner->handle() == stream.context;
  const bool queues = DeviceWaits::hold_up_queues(*own_state);
  const bool streams = DeviceWaits::hold_up_streams(stream, is_own);
  if (is_own && (queues || streams)) {
    const cuda::RelaxedCaptureScope relaxed(driver);
    cuda::insist([&] { return driver.cuEventSynchronize(point.event()); });
    point.number = 0;
    point.owner->stats().add(stats::Counter::stream_waits_total);
    return;
  }
  if (streams) return wait_on_host(driver, point);
  {
    const UsablePoint usable(point, stream.context);
    if (!usable) point.number = 0;
    ordered = !usable || driver.cuStreamWaitEvent(stream.handle, point.event(), 0) == CUDA_SUCCESS;
    if (usable) point.owner->stats().add(stats::Counter::stream_waits_total);
  }
  if (!ordered) wait_on_host(driver, point);
}

// The newest point first: whoever waits for it comes behind what its own stream has waited for.
void wait_for_others(const cuda::Driver& driver, Stream& stream) {
  if (may_capture(driver, stream.handle)) return;
  const Point* of_legacy = nullptr;
  for (const Whole& whole : own_state->wholes) {
    const bool is_own = whole.of_legacy && whole.context == stream.context;
    if (is_own && stream.handle == CU_STREAM_LEGACY) of_legacy = &whole.point;
  }
  const auto is_own = [&](const Point& point) {
    return &point == &stream.point || &point == of_legacy;
  };
  std::uint64_t behind = stream.waited;  // all points up to this number
  std::uint64_t below = own_state->newest + 1;
  while (behind + 1 < below && !CUPOOL_MUTATED("forgets-the-order-of-a-free")) {
    std::uint64_t number = 0;  // the next one; several points may have it
    for_each_point([&](const Point& point) {
      if (point.number < below && point.number > number && !is_own(point)) {
        number = point.number;
      }
    });
    if (number <= behind) break;
    for_each_point([&](Point& point) {
      if (point.number != number || is_own(point)) return;
      wait_for(driver, stream, point);
      behind = std::max(behind, point.covers);
    });
    below = number;
  }
  stream.waited = own_state->newest;
}

// The entry of all work of `context`; null: there are too many contexts. One whose work is not
// marked yet gives its entry up to the work that is not known, which any context's free covers.
Whole* whole_of(const cuda::Driver& driver, CUcontext context) {
  Whole* unused = nullptr;
  const auto look = [&](const auto& is_unused) {
    for (Whole& whole : own_state->wholes) {
      const bool is_better = unused == nullptr || (unused->unmarked && !whole.unmarked);
      if (is_better && is_unused(whole.point)) unused = &whole;
    }
  };
  for (Whole& whole : own_state->wholes) {
    if (whole.context == context) return &whole;
  }
  look([](const Point& point) { return point.number == 0; });
  if (unused == nullptr || unused->unmarked) {
    look([&](Point& point) { return is_complete(driver, point); });
  }
  if (unused == nullptr) return nullptr;
  if (unused->unmarked) own_state->add_unknown();
  unused->context = context;
  unused->unmarked = false;
  unused->of_legacy = false;
  unused->unknown_work = 0;
  return unused;
}

// The next free in the stream's context records a point of all its work.
void mark_whole(const cuda::Driver& driver, Stream& stream) {
  if (!stream.unmarked) return;
  stream.unmarked = false;
  Whole* const whole = stream.context == nullptr ? nullptr : whole_of(driver, stream.context);
  if (whole != nullptr) {
    whole->unmarked = true;
  } else {
    own_state->add_unknown();
  }
}

Stream* find(CUstream handle, CUcontext context) {
  for (Stream& stream : own_state->streams) {
    if (stream.handle == handle && (context == nullptr || stream.context == context)) {
      return &stream;
    }
  }
  return nullptr;
}

void take(Stream& stream, CUstream handle, CUcontext context) {
  stream.handle = handle;
  stream.context = context;
  stream.waited = 0;
  stream.launched = 0;
  stream.kind = Stream::Kind::unknown;
}

// An entry without unfinished work. If there is none, contexts are marked as a whole from now on,
// and the entries only tell which points their streams have waited for.
Stream& unused_stream(const cuda::Driver& driver) {
  for (Stream& stream : own_state->streams) {
    if (stream.handle == nullptr && is_complete(driver, stream.point)) return stream;
  }
  for (Stream& stream : own_state->streams) {
    if (!stream.unmarked && stream.point.number == 0) return stream;
  }
  own_state->many = true;
  Stream& stream = own_state->streams[own_state->next++ % own_state->streams.size()];
  wait_on_host(driver, stream.point);
  mark_whole(driver, stream);
  return stream;
}

// The calling thread's entry of `handle`, or null. The handle of a default stream means another
// stream in each context.
Stream* known_stream(const cuda::Driver& driver, CUstream handle) {
  const bool ambiguous = is_default(handle) && several_contexts();
  return find(handle, ambiguous ? context_of(driver, handle) : nullptr);
}

// The same; a new one if there is none.
Stream& stream_of(const cuda::Driver& driver, CUstream handle) {
  Stream* stream = known_stream(driver, handle);
  if (stream == nullptr) {
    stream = &unused_stream(driver);
    take(*stream, handle, context_of(driver, handle));
  }
  DeviceWaits::learn_kind(driver, *stream);
  return *stream;
}

// The thread's work in the lane, which has been left since.
void take_over_lane_work(const cuda::Driver& driver) {
  const auto [context, handle] = LaneMark::place();
  if (handle == nullptr) {
    own_state->add_unknown();
    return;
  }
  Stream* stream = find(handle, is_default(handle) ? context : nullptr);
  if (stream == nullptr) {
    stream = &unused_stream(driver);
    take(*stream, handle, context);
  }
  stream->unmarked = true;
}

}  // namespace

bool ThreadOrder::is_on_for_thread(const cuda::Driver& driver) {
  // Who knows of a stream's end finds it gone from the lane's mark, too.
  std::uint64_t word = word_.load(std::memory_order_acquire);
  if (word == kUnknown) {
    const config::Settings& settings = config::settings();
    const bool wanted = settings.enable && settings.mode == config::Mode::pool &&
                        settings.free_mode == config::FreeMode::automatic;
    word_.compare_exchange_strong(word, wanted ? kOff + 1 : kOff);
    word = word_.load(std::memory_order_acquire);
  }
  if (word == kOff || !has_state()) return false;
  if (hot_.word == word) return true;
  // A stream was destroyed: no handle is known to mean the same stream as before.
  for (Stream& stream : own_state->streams) {
    if (CUPOOL_MUTATED("trusts-a-destroyed-handle")) stream.unmarked = false;
    if (stream.unmarked) hot_.has_work = true;
    mark_whole(driver, stream);
    stream.handle = nullptr;
  }
  hot_.word = word;
  hot_.stream = nullptr;
  return true;
}

void ThreadOrder::submits_elsewhere(const cuda::Driver& driver, CUstream handle, What what) {
  const util::Uncancelled throughout;  // it may wait, and is reached from the hot path
  const bool is_work = what != What::served_free;
  const bool waits = what != What::others_work || CUPOOL_MUTATED("waits-to-allocate");
  if (is_work) DeviceWaits::thread_submits();
  if (!is_on_for_thread(driver)) {
    if (is_work) submits_without_state();
    return;
  }
  const Stream* const known = is_work || is_default(handle) ? nullptr : find(handle, nullptr);
  if (known != nullptr && known->waited == own_state->newest) return;
  hot_.stream = nullptr;  // its entry may be taken
  // What a capture records is not submitted.
  if (may_capture(driver, handle)) return;
  if (CUPOOL_MUTATED("forgets-the-order-of-served-frees") && !is_work) return;
  Stream& stream = stream_of(driver, handle);
  if (waits && stream.waited != own_state->newest) wait_for_others(driver, stream);
  if (!is_work) return;
  hot_.has_work = true;
  stream.unmarked = true;
  if (own_state->many) return mark_whole(driver, stream);
  if (is_default(handle) && several_contexts()) return;
  if (!waits && stream.waited != own_state->newest) return;
  hot_.stream = handle;
  hot_.unmarked = &stream.unmarked;
}

// The thread's next free waits. If its end cannot be seen, the next free of any thread covers it.
void ThreadOrder::submits_without_state() {
  hot_.has_work = is_on();
  if (is_on() && !watch_thread_end()) left_.fetch_add(1, std::memory_order_relaxed);
}

// Behind the thread's last free. If its end cannot be seen, the next free of any thread covers each
// piece of work.
void ThreadOrder::first_in_lane() {
  DeviceWaits::thread_submits();
  if (is_on() && !watch_thread_end()) {
    left_.fetch_add(1, std::memory_order_relaxed);
  } else {
    hot_.has_lane_work = true;
  }
}

void ThreadOrder::submits_unknown(const cuda::Driver& driver) {
  if (!is_on_for_thread(driver)) return submits_without_state();
  for_each_point([&](Point& point) { wait_on_host(driver, point); });
  own_state->add_unknown();
  hot_.has_work = true;
}

bool ThreadOrder::frees(const cuda::Driver& driver, Context& context) {
  const bool on = is_on_for_thread(driver);
  if (on && hot_.has_lane_work) {
    hot_.stream = nullptr;  // its entry may be taken
    take_over_lane_work(driver);
  }
  hot_.has_lane_work = false;
  const std::uint64_t left = left_.load(std::memory_order_relaxed);
  const bool others_left = left != hot_.left;
  hot_.left = left;
  if (!on) {
    hot_.has_work = false;
    return !is_on();
  }
  if (others_left && !CUPOOL_MUTATED("forgets-ended-threads")) ++own_state->unknown_work;
  hot_.has_work = true;
  const UseCount::Use use(own_users());
  if (!Serving::open_for_certain()) return false;
  const cuda::ContextScope scope(driver, context.handle());
  if (!scope.ok()) return false;
  const std::uint64_t number = own_state->newest + 1;
  bool has_work = false;  // in other contexts
  // What is recorded counts, and the next free looks at the rest again.
  const auto fail = [&] {
    hot_.stream = nullptr;
    hot_.has_points = true;
    own_state->newest = number;
    return false;
  };
  Whole* const whole = whole_of(driver, context.handle());
  const bool unknown = own_state->unknown_work != 0;
  const bool whole_is_due =
      whole != nullptr && (whole->unmarked || whole->unknown_work != own_state->unknown_work);
  const bool has_event = whole != nullptr && driver.cuCtxRecordEvent != nullptr;
  Stream* legacy = nullptr;
  Stream* last = nullptr;
  std::size_t streams = 0;  // with work
  for (Stream& stream : own_state->streams) {
    if (!stream.unmarked) continue;
    if (stream.context != context.handle()) {
      has_work = true;
      continue;
    }
    last = &stream;
    ++streams;
    // Its event would be an operation between those of other threads' blocking streams.
    if (stream.handle == CU_STREAM_LEGACY && has_event) {
      legacy = &stream;
      continue;
    }
    // Who destroys the stream announces it first, and waits for this use then.
    const StreamUse in_use(stream.handle);
    if (word_.load() != hot_.word || !prepare(driver, context, stream.point) ||
        driver.cuEventRecord(stream.point.event(), stream.handle) != CUDA_SUCCESS) {
      return fail();
    }
    stream.unmarked = false;
    stream.point.number = number;
    stream.point.covers = stream.waited;
  }
  if (whole == nullptr && unknown) return fail();
  const bool is_alone = streams == 1 && !whole_is_due;
  if (whole_is_due || legacy != nullptr) {
    if (!has_event || !prepare(driver, context, whole->point) ||
        driver.cuCtxRecordEvent(context.handle(), whole->point.event()) != CUDA_SUCCESS) {
      return fail();
    }
    whole->of_legacy = is_alone && (whole->of_legacy || whole->point.number == 0);
    whole->unmarked = false;
    whole->unknown_work = own_state->unknown_work;
    whole->point.number = number;
    whole->point.covers = is_alone && legacy != nullptr ? legacy->waited : 0;
    if (legacy != nullptr) legacy->unmarked = false;
    for (Stream& stream : own_state->streams) {
      const bool is_covered = stream.context == whole->context && !whole->of_legacy;
      if (is_covered) stream.point.number = 0;
    }
  }
  for (const Whole& other : own_state->wholes) has_work |= other.unmarked;
  hot_.has_work = has_work || (unknown && several_contexts());
  if (!several_contexts()) own_state->unknown_unmarked = false;
  if (streams == 0 && !whole_is_due) return true;
  hot_.has_points = true;
  // A stream comes behind its own work anyway.
  if (is_alone && last->waited == own_state->newest) last->waited = number;
  if (!is_alone || last->handle != hot_.stream) hot_.stream = nullptr;
  own_state->newest = number;
  return true;
}

bool LaunchOrder::is_first_behind_points(const cuda::Driver& driver, CUstream handle) {
  if (!ThreadOrder::is_on() || own_state == nullptr) return false;
  Stream* const known = known_stream(driver, handle);
  if (known != nullptr && known->launched == own_state->newest) return false;
  if (known != nullptr && known->launched != 0) return !CUPOOL_MUTATED("forgets-newer-frees");
  // A new entry, or none in the lane or a capture: so many streams may come that each is new.
  if (!ThreadOrder::is_complete(driver, ThreadOrder::Of::own)) return true;
  if (known != nullptr) known->launched = own_state->newest;
  return false;
}

void LaunchOrder::submitted(const cuda::Driver& driver, CUstream handle) {
  if (own_state == nullptr) return;
  if (Stream* const known = known_stream(driver, handle)) known->launched = own_state->newest;
}

bool ThreadOrder::is_complete(const cuda::Driver& driver, Of frees) {
  bool complete = frees == Of::own || LaneMark::wait(driver, LaneMark::Wait::not_at_all);
  if (own_state == nullptr) return complete;
  for_each_point([&](Point& point) { complete &= engine::is_complete(driver, point); });
  return complete;
}

void ThreadOrder::has_waited_for(CUstream handle) {
  if (own_state == nullptr) return;
  if (hot_.word != word_.load(std::memory_order_acquire)) return;
  if (is_default(handle) && several_contexts()) return;
  if (Stream* const stream = find(handle, nullptr)) {
    stream->unmarked = false;
    stream->point.number = 0;
  }
  if (handle != CU_STREAM_LEGACY) return;
  for (Whole& whole : own_state->wholes) {
    if (whole.of_legacy) whole.point.number = 0;
  }
}

void ThreadOrder::has_waited_for_context(CUcontext context) {
  if (own_state == nullptr) return;
  if (!several_contexts()) own_state->unknown_unmarked = false;
  for (Stream& stream : own_state->streams) {
    if (stream.context != context) continue;
    stream.unmarked = false;
    stream.point.number = 0;
  }
  for (Whole& whole : own_state->wholes) {
    if (whole.context != context) continue;
    whole.unmarked = false;
    whole.point.number = 0;
  }
}

void ThreadOrder::let_users_out() {
  for (const Users& part : users) part.count.wait_until_none();
}

// Whether the calling thread has submitted work since its last free. What it has submitted in the
// lane comes before the mark, or is complete. An event that another thread records goes behind the
// mark only if that thread has work to cover: while the mark is pending, this is it.
bool ThreadOrder::leaves_work(const cuda::Driver& driver) {
  if (hot_.has_lane_work) {
    if (LaneWork::any() || LaneMark::is_stale()) return true;
    const bool pending = !LaneMark::wait(driver, LaneMark::Wait::not_at_all);
    if (pending && !CUPOOL_MUTATED("forgets-a-pending-mark")) return true;
  }
  return own_state == nullptr ? hot_.has_work : own_state->any_unmarked();
}

void ThreadOrder::thread_ends(const cuda::Driver& driver) {
  if (is_on() && leaves_work(driver)) left_.fetch_add(1, std::memory_order_relaxed);
  hot_.has_lane_work = false;
  if (own_state == nullptr) return;
  for_each_point([&](Point& point) {
    if (is_on() && !CUPOOL_MUTATED("ends-a-thread-without-a-wait")) wait_on_host(driver, point);
    drop(driver, point);
  });
  DeviceWaits::thread_ends(*own_state);
  delete own_state;
  own_state = nullptr;
  hot_ = Hot{};
}

void ThreadOrder::reset() {
  word_ = kUnknown;
  if (own_state != nullptr) for_each_point(forget);
  delete own_state;
  own_state = nullptr;
  hot_ = Hot{};
  for (Users& part : users) part.count.reset();
  DeviceWaits::reset();
  left_ = 0;
}

}  // namespace cupool::engine
