// SPDX-License-Identifier: Apache-2.0
// The order of a thread's frees, in every interleaving with what other threads announce: destroyed
// streams, captures, and the end of a thread. The properties: no event is recorded in a stream that
// is destroyed, or into a capture; what a thread submits after its free, or frees in a stream that
// serves others, comes behind its work before, in a new stream with an old handle, too; who goes on
// in the place of a thread that has ended comes behind that thread's work.

// Used as they are.
#include "config/settings.h"
#include "cuda/capture_state.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "stats/device_stats.h"
#include "util/log.h"
#include "util/uncancelled.h"

namespace cupool::log {

// Nothing is written.
std::atomic<int> detail::threshold{0};
void write(Level, const char*, ...) noexcept {}

}  // namespace cupool::log

#include "explored_atomic.h"

// The parts themselves, with the explorer's atomics. Each explored thread needs what a thread keeps
// for itself, which is private there.
// NOLINTBEGIN(bugprone-suspicious-include)
#define private public  // NOLINT(clang-diagnostic-keyword-macro)
#include "engine/context/thread_order.h"
#include "engine/reclaim/stream_use.h"
#undef private
#include "engine/context/points.cpp"
#include "engine/context/thread_order.cpp"
#include "engine/reclaim/lane_mark.cpp"
#define is_default is_default_stream
#include "engine/reclaim/stream_use.cpp"
#undef is_default
// NOLINTEND(bugprone-suspicious-include)

namespace cupool {

const config::Settings& config::settings() noexcept {
  static const Settings of_test;
  return of_test;
}

namespace engine {

bool watch_thread_end() {
  return true;
}
bool several_contexts() {
  return false;
}
// So few threads wait on the device, in streams that others do not wait for.
void DeviceWaits::thread_submits() {}
void DeviceWaits::learn_kind(const cuda::Driver&, thread_work::Stream&) {}
bool DeviceWaits::hold_up_queues(thread_work::State&) {
  return false;
}
bool DeviceWaits::hold_up_streams(const thread_work::Stream&, bool) {
  return false;
}
void DeviceWaits::thread_ends(const thread_work::State&) {}
void DeviceWaits::reset() {}
ContextVisit::ContextVisit(Context&, std::uint64_t) : gate_(nullptr), outer_(nullptr) {
  inside_ = true;
}
ContextVisit::~ContextVisit() {}

}  // namespace engine
}  // namespace cupool

namespace explorer {
namespace {

using cupool::cuda::Driver;
using cupool::engine::Context;
using cupool::engine::LaneMark;
using cupool::engine::own_state;
using cupool::engine::Serving;
using cupool::engine::StreamUse;
using cupool::engine::ThreadOrder;

CUstream stream_of(std::uintptr_t number) {
  return reinterpret_cast<CUstream>(0x1000 * number);
}
const CUstream kFirst = stream_of(1);
const CUstream kSecond = stream_of(2);
const CUstream kThird = stream_of(3);

// How much of the work of each stream is covered.
using Covered = std::map<CUstream, int>;
void join(Covered* covered, const Covered& more) {
  for (const auto& [stream, number] : more) {
    (*covered)[stream] = std::max((*covered)[stream], number);
  }
}

// A context on a device whose work is never complete.
struct World {
  explicit World(Threads& run) {
    now = this;
    ThreadOrder::reset();
    LaneMark::reset();
    ThreadOrder::word_ = ThreadOrder::kOff + 1;
    cupool::engine::own_users();  // numbers the thread
    StreamUse::last_ = nullptr;
    run.each_has_its_own(&ThreadOrder::hot_, sizeof ThreadOrder::hot_);
    run.each_has_its_own(&own_state, sizeof own_state);
    run.each_has_its_own(&StreamUse::last_, sizeof StreamUse::last_);
  }

  // What a thread keeps for itself is given up with it.
  struct OfThread {
    ~OfThread() { delete own_state; }
  };

  // --- the program ---

  /// Work in this stream. The number of it there.
  int submit(CUstream stream) {
    ThreadOrder::submits(driver, stream);
    act();
    return ++behind[stream][stream];
  }
  /// Work that has to come behind this of another stream.
  void submit_behind(CUstream stream, CUstream other, int number) {
    submit(stream);
    require(behind[stream][other] >= number, "work comes behind that before the thread's free");
  }
  /// A free. Whether it did not wait.
  bool free() { return !ThreadOrder::has_work() || ThreadOrder::frees(driver, context); }
  /// What a hook does before the driver destroys a stream, and the driver.
  void destroy(CUstream stream) {
    ThreadOrder::destroys_stream();
    StreamUse::wait_for_others(stream);
    act();
    if (stream == kFirst) handle.write(1);
    behind.erase(stream);
    destroyed = stream;
  }

  // --- the driver ---

  // The driver's calls order no threads here.
  void look() { glance(calls); }
  void act() {
    modify(
        calls, [](std::uint64_t before) { return before + 1; }, std::memory_order_relaxed,
        Site::here());
  }
  static CUresult create(CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(++now->events);
    return CUDA_SUCCESS;
  }
  static CUresult destroy_event(CUevent) { return CUDA_SUCCESS; }
  static CUresult record(CUevent event, CUstream stream) {
    now->look();
    require(!now->captures, "no event is recorded into a capture");
    require(stream != now->destroyed, "no event is recorded in a destroyed stream");
    if (stream == kFirst) now->handle.read();
    now->recorded[event] = now->behind[stream];
    return CUDA_SUCCESS;
  }
  static CUresult record_all(CUcontext, CUevent event) {
    now->look();
    require(!now->captures, "no event is recorded into a capture");
    for (const auto& [stream, covered] : now->behind) join(&now->recorded[event], covered);
    return CUDA_SUCCESS;
  }
  static CUresult wait(CUstream stream, CUevent event, unsigned) {
    now->act();
    join(&now->behind[stream], now->recorded[event]);
    return CUDA_SUCCESS;
  }
  static CUresult query(CUevent) { return CUDA_ERROR_NOT_READY; }
  static CUresult current(CUcontext* context) {
    *context = kContext;
    return CUDA_SUCCESS;
  }
  static CUresult context_of(CUstream, CUcontext* context) { return current(context); }
  static CUresult is_capturing(CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  static Driver make_driver() {
    Driver made;
    made.cuEventCreate = create;
    made.cuEventDestroy_v2 = destroy_event;
    made.cuEventRecord = record;
    made.cuCtxRecordEvent = record_all;
    made.cuEventQuery = query;
    made.cuStreamWaitEvent = wait;
    made.cuStreamGetCtx = context_of;
    made.cuCtxGetCurrent = current;
    made.cuStreamIsCapturing = is_capturing;
    return made;
  }

  static inline const CUcontext kContext = reinterpret_cast<CUcontext>(0x9000);
  static inline const Driver driver = make_driver();
  static inline World* now = nullptr;

  Context context{kContext};
  Cell calls;
  Data<int> handle;                    ///< the driver's, of kFirst
  std::map<CUstream, Covered> behind;  ///< what each stream comes behind, its own work included
  std::map<CUevent, Covered> recorded;
  std::uintptr_t events = 0;
  CUstream destroyed = nullptr;
  bool captures = false;
  std::atomic<int> told{0};
};

void run_thread(Threads& run, const std::function<void()>& body) {
  run.thread([body] {
    const World::OfThread own;
    body();
  });
}

// A thread frees while another one destroys the stream of its work.
Program freeing_beside_a_destruction() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>(run);
    run_thread(run, [=] {
      world->submit(kFirst);
      world->told.store(1, std::memory_order_release);
      world->free();
    });
    run_thread(run, [=] {
      if (world->told.load(std::memory_order_acquire) != 0) world->destroy(kFirst);
    });
  };
}

// The same where the work was in the lane, which is left before its stream is destroyed
// (Lane::destroys()).
Program freeing_beside_the_end_of_the_lanes_stream() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>(run);
    LaneMark::begin(World::kContext, kFirst);
    run_thread(run, [=] {
      ThreadOrder::submits_in_lane();
      world->act();
      world->told.store(1, std::memory_order_release);
      world->free();
    });
    run_thread(run, [=] {
      if (world->told.load(std::memory_order_acquire) == 0) return;
      LaneMark::forget_stream();
      world->destroy(kFirst);
    });
  };
}

// A new stream has the handle of one that has waited for the thread's points.
Program submitting_to_an_old_handle() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>(run);
    run_thread(run, [=] {
      const int number = world->submit(kSecond);
      require(world->free(), "an event can be recorded");
      world->submit_behind(kFirst, kSecond, number);
      world->told.store(1, std::memory_order_release);
      if (world->told.load(std::memory_order_acquire) != 2) return;
      world->submit_behind(kFirst, kSecond, number);
    });
    run_thread(run, [=] {
      if (world->told.load(std::memory_order_acquire) != 1) return;
      world->destroy(kFirst);
      world->destroyed = nullptr;
      world->told.store(2, std::memory_order_release);
    });
  };
}

// Memory that a thread used in one stream is freed in another one, behind a free of the thread; the
// next owner in that stream is another thread. A third one destroys some stream meanwhile.
Program freeing_for_another_thread() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>(run);
    run_thread(run, [=] {
      world->submit(kSecond);
      const int number = world->submit(kFirst);
      if (!world->free()) return;
      ThreadOrder::submits(World::driver, kSecond, ThreadOrder::What::served_free);
      world->told.store(number, std::memory_order_release);
    });
    run_thread(run, [=] {
      const int number = world->told.load(std::memory_order_acquire);
      if (number != 0) world->submit_behind(kSecond, kFirst, number);
    });
    run_thread(run, [=] { world->destroy(kThird); });
  };
}

// A capture begins (StreamContexts::begin_capture()).
Program freeing_beside_a_capture() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>(run);
    run_thread(run, [=] {
      world->submit(kFirst);
      world->free();
    });
    run_thread(run, [=] {
      Serving::capture_begins();
      ThreadOrder::let_users_out();
      world->act();
      world->captures = true;
    });
  };
}

// A thread ends with work behind no free, and another one, which has joined it, frees.
Program freeing_in_the_place_of_another() {
  return [](Threads& run) {
    const auto world = std::make_shared<World>(run);
    run_thread(run, [=] {
      const int number = world->submit(kFirst);
      ThreadOrder::thread_ends(World::driver);
      world->told.store(number, std::memory_order_release);
    });
    run_thread(run, [=] {
      const int number = world->told.load(std::memory_order_acquire);
      if (!world->free()) return;
      if (number != 0) world->submit_behind(kSecond, kFirst, number);
    });
  };
}

void expect_right(const Program& program) {
  const Result result = explore(program);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete) << result.executions << " executions";
}

TEST(Explorer, OrderBehindFrees) {
  const std::vector<Program> programs = {
      freeing_beside_a_destruction(), freeing_beside_the_end_of_the_lanes_stream(),
      submitting_to_an_old_handle(), freeing_beside_a_capture(), freeing_in_the_place_of_another()};
  for (const Program& program : programs) expect_right(program);
  expect_right(freeing_for_another_thread());
  for (const char* file : {"thread_order.h", "thread_order.cpp"}) {
    EXPECT_EQ(unneeded_orders(programs, file), std::vector<std::string>{}) << file;
  }
  // Uses beyond the first places, and without one, are in none of the programs.
  const std::vector<std::string> unneeded = unneeded_orders(programs, "stream_use.cpp");
  EXPECT_EQ(unneeded.size(), 2u) << testing::PrintToString(unneeded);
}

}  // namespace
}  // namespace explorer
