// SPDX-License-Identifier: Apache-2.0
// Opening, marking and leaving the lane.
//
// Who leaves publishes it, waits until no thread is marking, and only then lets streams wait for
// the mark. Who frees looks at `submitted_` first and at `word_` second. So if a free still finds
// the lane open, the mark that covers it was begun before the leaving, which waits for it.
#include "engine/reclaim/lane.h"

#include <sched.h>

#include <mutex>

#include "cuda/capture_state.h"
#include "cuda/scopes.h"
#include "engine/reclaim/serving.h"
#include "util/clock.h"
#include "util/lock_order.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

std::atomic<std::uint64_t> Lane::word_{kNoWork};
std::atomic<bool> Lane::mark_is_awaited_{false};
std::atomic<bool> Lane::mark_is_stale_{false};
std::atomic<CUstream> Lane::stream_{nullptr};
std::atomic<CUcontext> Lane::context_{nullptr};
std::atomic<CUevent> Lane::mark_{nullptr};
std::atomic<unsigned> Lane::inside_{0};
std::atomic<std::uint64_t> Lane::marks_{0};
std::atomic<std::uint64_t> Lane::serialised_{0};
std::atomic<bool> Lane::submitted_{false};

namespace {

// A thread that records a mark may wait in the driver for room in the stream's queue.
constexpr std::uint64_t kLongestMarkNs = 10'000'000'000;

// Guards opening, leaving and the creation of the mark.
util::Ranked<util::LockRank::lane> change_mutex;
std::atomic<std::uint64_t> opened_ns{0};
std::atomic<std::uint64_t> left_ns{0};
std::atomic<Lane::End> end_of_lane{Lane::End::none};

}  // namespace

bool Lane::admit(const cuda::Driver& driver, CUstream stream) {
  // What a capture records is not submitted. Its graph is, when it is launched.
  if (Serving::any_capture() && cuda::is_capturing(driver, stream).value_or(false)) return false;
  {
    const std::lock_guard lock(change_mutex);
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    if (word == kNoWork && open(driver, stream)) return true;
    if (word == key_of(stream)) return true;
    if (word > kLeft) leave_locked(End::second_stream);
  }
  order_behind_mark(driver, stream);
  return false;
}

// The first work of the process. False: no lane.
bool Lane::open(const cuda::Driver& driver, CUstream stream) {
  if (stream == CU_STREAM_PER_THREAD) {
    leave_locked(End::per_thread);
    return false;
  }
  CUcontext context = nullptr;
  const CUresult result = stream == CU_STREAM_LEGACY || driver.cuStreamGetCtx == nullptr
                              ? driver.cuCtxGetCurrent(&context)
                              : driver.cuStreamGetCtx(stream, &context);
  CUcontext known = nullptr;
  if (result != CUDA_SUCCESS || context == nullptr) return false;  // the driver refuses the work
  if (!context_.compare_exchange_strong(known, context) && known != context) {
    leave_locked(End::context);
    return false;
  }
  stream_.store(stream);
  opened_ns.store(util::now_ns());
  word_.store(key_of(stream), std::memory_order_seq_cst);
  return true;
}

void Lane::leave(End why) {
  if (word_.load(std::memory_order_acquire) == kLeft) return;
  const std::lock_guard lock(change_mutex);
  if (word_.load(std::memory_order_relaxed) != kLeft) leave_locked(why);
}

void Lane::leave_locked(End why) {
  const bool open = word_.load(std::memory_order_relaxed) > kLeft;
  word_.store(kLeft, std::memory_order_seq_cst);
  end_of_lane.store(why);
  left_ns.store(util::now_ns());
  if (!open) return;
  if (!CUPOOL_MUTATED("leaves-beside-a-mark") && !wait_until_nobody_inside()) mark_is_stale_ = true;
  if (marks_.load() != 0 && !CUPOOL_MUTATED("leaves-without-a-wait")) mark_is_awaited_ = true;
  CUPOOL_LOG(debug, "the process leaves its one lane: %s", text_of(why));
}

void Lane::leave_unknown(const cuda::Driver& driver) {
  leave(End::unknown_work);
  settle(driver);
}

bool Lane::wait_until_nobody_inside() {
  const util::Uncancelled throughout;
  const std::uint64_t begin = util::now_ns();
  while (inside_.load(std::memory_order_seq_cst) != 0) {
    if (util::now_ns() - begin > kLongestMarkNs) return false;
    sched_yield();
  }
  return true;
}

void Lane::let_marks_in() {
  if (word_.load(std::memory_order_seq_cst) > kLeft) wait_until_nobody_inside();
}

bool Lane::covers_free(const cuda::Driver& driver) {
  if (!submitted_.load(std::memory_order_acquire)) return is_open();
  inside_.fetch_add(1, std::memory_order_seq_cst);
  bool marked = false;
  if (is_open() && Serving::open_for_certain()) {
    marks_.fetch_add(1, std::memory_order_seq_cst);
    submitted_.exchange(false, std::memory_order_acq_rel);
    marked = record(driver);
    if (!marked) {
      mark_is_stale_.store(true);
      submitted_.store(true, std::memory_order_release);
    }
  }
  inside_.fetch_sub(1, std::memory_order_release);
  if (marked) return is_open();
  if (mark_is_stale_.load()) leave(End::failure);
  return false;
}

bool Lane::record(const cuda::Driver& driver) {
  const cuda::ContextScope scope(driver, context_.load());
  if (!scope.ok()) return false;
  CUevent mark = mark_.load(std::memory_order_acquire);
  if (mark == nullptr) {
    // Two threads may both create one; the second is given back.
    if (driver.cuEventCreate(&mark, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
    CUevent expected = nullptr;
    if (!mark_.compare_exchange_strong(expected, mark, std::memory_order_acq_rel)) {
      driver.cuEventDestroy_v2(mark);
      mark = expected;
    }
  }
  return driver.cuEventRecord(mark, stream_.load()) == CUDA_SUCCESS;
}

// The stream waits on the device, so the host does not. A stream that captures waits when its graph
// is launched.
void Lane::order_behind_mark(const cuda::Driver& driver, CUstream stream) {
  if (!mark_is_awaited_.load(std::memory_order_acquire) || stream == stream_.load()) return;
  inside_.fetch_add(1, std::memory_order_seq_cst);
  const CUevent mark = mark_.load(std::memory_order_acquire);
  const auto on_host = [&](CUstream of) {
    const cuda::ContextScope scope(driver, context_.load());
    if (of != nullptr && scope.ok()) driver.cuStreamSynchronize(of);
  };
  if (mark_is_stale_.load()) {
    on_host(stream_.load());
  } else if (mark != nullptr) {
    const cuda::RelaxedCaptureScope relaxed(driver);
    if (driver.cuEventQuery(mark) == CUDA_SUCCESS) {
      mark_is_awaited_.store(false, std::memory_order_release);
    } else if (driver.cuStreamWaitEvent(stream, mark, 0) != CUDA_SUCCESS) {
      driver.cuEventSynchronize(mark);
    }
  }
  inside_.fetch_sub(1, std::memory_order_release);
}

bool Lane::is_settled(const cuda::Driver& driver) {
  if (!was_used()) return true;
  if (inside_.load(std::memory_order_seq_cst) != 0 || mark_is_stale_.load()) return false;
  const CUevent mark = mark_.load(std::memory_order_acquire);
  if (mark == nullptr) return true;
  const cuda::RelaxedCaptureScope relaxed(driver);
  return driver.cuEventQuery(mark) == CUDA_SUCCESS;
}

void Lane::settle(const cuda::Driver& driver) {
  if (!was_used() || CUPOOL_MUTATED("exports-without-a-wait")) return;
  wait_until_nobody_inside();
  const cuda::RelaxedCaptureScope relaxed(driver);
  const CUevent mark = mark_.load(std::memory_order_acquire);
  if (mark_is_stale_.load()) {
    const cuda::ContextScope scope(driver, context_.load());
    if (scope.ok()) driver.cuStreamSynchronize(stream_.load());
  } else if (mark != nullptr) {
    driver.cuEventSynchronize(mark);
  }
}

void Lane::destroys(CUstream stream) {
  if (stream_.load() != stream) return;
  leave(End::destroyed);
  stream_.store(nullptr);  // the handle may name another stream later
}

void Lane::context_seen(CUcontext context) {
  CUcontext known = context_.load(std::memory_order_acquire);
  if (context == nullptr || context == known) return;
  if (known == nullptr && context_.compare_exchange_strong(known, context)) return;
  if (known != context) leave(End::context);
}

void Lane::context_ends(const cuda::Driver& driver, CUcontext context) {
  if (context_.load() != context) return;
  leave(End::context);
  settle(driver);
  mark_is_awaited_.store(false, std::memory_order_release);
  mark_.store(nullptr);
  stream_.store(nullptr);
  wait_until_nobody_inside();
}

std::uint64_t Lane::recorded_marks() {
  const std::uint64_t begun = marks_.load(std::memory_order_seq_cst);
  return inside_.load(std::memory_order_seq_cst) == 0 ? begun : 0;
}

void Lane::launch_serialised(std::uint64_t recorded) {
  std::uint64_t known = serialised_.load(std::memory_order_relaxed);
  while (known < recorded && !serialised_.compare_exchange_weak(known, recorded)) {
  }
}

Lane::Story Lane::story() {
  return {opened_ns.load(), left_ns.load(), end_of_lane.load()};
}

const char* Lane::text_of(End end) {
  switch (end) {
    case End::none:
      return "one stream";
    case End::off:
      return "switched off";
    case End::second_stream:
      return "work on another stream";
    case End::per_thread:
      return "work on a per-thread default stream";
    case End::context:
      return "another context, or the end of the first";
    case End::destroyed:
      return "its stream was destroyed";
    case End::unknown_work:
      return "work whose stream is not known";
    case End::failure:
      return "the driver refused to record an event";
  }
  return "";
}

void Lane::reset() {
  word_ = kNoWork;
  mark_is_awaited_ = mark_is_stale_ = submitted_ = false;
  stream_ = nullptr;
  context_ = nullptr;
  mark_ = nullptr;
  inside_ = 0;
  marks_ = serialised_ = opened_ns = left_ns = 0;
  end_of_lane = End::none;
}

}  // namespace cupool::engine
