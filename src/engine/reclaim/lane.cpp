// SPDX-License-Identifier: Apache-2.0
// Opening, marking and leaving the lane.
//
// Who leaves publishes it, waits until no thread is marking, and only then has streams wait for the
// mark. Who frees looks at `submitted_` first and at `word_` second. So if a free still finds the
// lane open, the mark that covers it was begun before the leaving, which waits for it.
#include "engine/reclaim/lane.h"

#include <mutex>

#include "cuda/capture_state.h"
#include "engine/reclaim/dependent_launches.h"
#include "engine/reclaim/serving.h"
#include "util/clock.h"
#include "util/lock_order.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

std::atomic<std::uint64_t> Lane::word_{kNoWork};
std::atomic<CUcontext> Lane::context_{nullptr};
std::atomic<bool> Lane::submitted_{false};

namespace {

// Guards opening and leaving.
util::Ranked<util::LockRank::lane> change_mutex;
std::atomic<std::uint64_t> opened_ns{0};

const char* text_of(Lane::End end) {
  switch (end) {
    case Lane::End::off:
      return "switched off";
    case Lane::End::second_stream:
      return "work on another stream";
    case Lane::End::per_thread:
      return "work on a per-thread default stream";
    case Lane::End::context:
      return "another context, or the end of the first";
    case Lane::End::destroyed:
      return "its stream was destroyed";
    case Lane::End::unknown_work:
      return "work whose stream is not known";
    case Lane::End::failure:
      return "the driver refused to record an event";
  }
  return "";
}

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
  LaneMark::order_behind(driver, stream);
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
  if (result != CUDA_SUCCESS || context == nullptr) return false;  // the driver refuses the work
  CUcontext known = nullptr;
  if (!context_.compare_exchange_strong(known, context) && known != context) {
    leave_locked(End::context);
    return false;
  }
  LaneMark::begin(context, stream);
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
  if (!open) return;
  if (!CUPOOL_MUTATED("leaves-beside-a-mark")) LaneMark::let_users_out();
  if (CUPOOL_MUTATED("marks-when-leaving")) LaneMark::record(*cuda::driver());
  if (!CUPOOL_MUTATED("leaves-without-a-wait")) LaneMark::await();
  CUPOOL_LOG(info, "the process has left its one lane after %.1f s: %s",
             static_cast<double>(util::now_ns() - opened_ns.load()) / 1e9, text_of(why));
}

void Lane::leave_unknown(const cuda::Driver& driver) {
  if (is_over()) return;
  leave(End::unknown_work);
  LaneMark::wait(driver);
}

bool Lane::covers_free(const cuda::Driver& driver) {
  if (!submitted_.load(std::memory_order_acquire)) return is_open();
  if (!is_open()) return false;
  bool marked = false;
  {
    const LaneMark::Use use;
    if (!is_open() || !Serving::open_for_certain()) return false;
    LaneMark::count();
    submitted_.exchange(false, std::memory_order_acq_rel);
    marked = CUPOOL_MUTATED("frees-without-a-mark") || LaneMark::record(driver);
  }
  if (!marked) leave(End::failure);
  return marked && is_open();
}

void Lane::let_marks_in() {
  if (is_open()) LaneMark::let_users_out();
}

void Lane::destroys(CUstream stream) {
  if (!LaneMark::is_of(stream)) return;
  leave(End::destroyed);
  LaneMark::forget_stream();
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
  LaneMark::wait(driver);
  LaneMark::forget();
}

void Lane::end_in_child() {
  word_ = kLeft;
  LaneMark::reset();
}

void Lane::reset() {
  word_ = kNoWork;
  context_ = nullptr;
  submitted_ = false;
  opened_ns = 0;
  LaneMark::reset();
  DependentLaunch::reset();
}

}  // namespace cupool::engine
