// SPDX-License-Identifier: Apache-2.0
// The shipped code of the lane with the explorer's atomics, on a driver whose streams and events
// are simple ones: positions in the lane's stream. For one source of each program.
#pragma once

// Used as they are.
#include "config/settings.h"
#include "cuda/capture_state.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "stats/device_stats.h"
#include "stats/lane_figures.h"
#include "util/log.h"

namespace cupool::log {

// Nothing is written.
std::atomic<int> detail::threshold{0};
void write(Level, const char*, ...) noexcept {}

}  // namespace cupool::log

#include "explored_atomic.h"

// The parts themselves, with the explorer's atomics.
// NOLINTBEGIN(bugprone-suspicious-include)
#include "engine/context/submission.h"
#include "engine/reclaim/dependent_launches.cpp"
#include "engine/reclaim/lane.cpp"
#include "engine/reclaim/lane_mark.cpp"
#include "engine/reclaim/other_streams.cpp"
// NOLINTEND(bugprone-suspicious-include)

namespace cupool {

const config::Settings& config::settings() noexcept {
  static const Settings of_test = [] {
    Settings made;
    made.enable = made.lane = true;
    made.mode = Mode::pool;
    made.free_mode = FreeMode::automatic;
    return made;
  }();
  return of_test;
}

namespace engine {

// What only looks on: reports and statistics.
void LaneHistory::opened(std::uint64_t) {}
void LaneHistory::away(std::uint64_t, const char*) {}
void LaneHistory::returned(std::uint64_t) {}
void LaneHistory::left(std::uint64_t, const char*, const char*) {}
void LaneHistory::reset() {}
void LaneStalls::freed(const cuda::Driver&, CUcontext, CUstream, stats::DeviceStats&,
                       std::uint64_t) {}
void LaneStalls::reset() {}
bool UnseenWork::look(const cuda::Driver&, CUcontext, CUstream, std::uint64_t) {
  return false;
}
void UnseenWork::reset() {}
// The order behind frees outside the lane is another test's.
void ThreadOrder::first_in_lane() {}
void ThreadOrder::submits_elsewhere(const cuda::Driver&, CUstream, What) {}
// No stream is destroyed here.
StreamUse::StreamUse(CUstream) {}
StreamUse::~StreamUse() {}

}  // namespace engine
}  // namespace cupool

namespace explorer {

using cupool::cuda::Driver;
using cupool::engine::InlineSubmission;
using cupool::engine::Lane;
using cupool::engine::LaneMark;
using cupool::engine::PendingWork;
using cupool::engine::Serving;
using cupool::engine::ThreadOrder;

inline CUstream stream_of(std::uintptr_t number) {
  return reinterpret_cast<CUstream>(0x1000 * number);
}
inline const CUstream kLane = stream_of(1);

// A device whose work in the lane's stream is numbered. That of other streams is complete as soon
// as all that they wait for is.
struct Device {
  explicit Device(int launches = 8) {
    now = this;
    ThreadOrder::stop();
    Lane::reset();
    Lane::context_seen(kContext);
    for (int i = 0; i < launches; ++i) submit(kLane);
    done = launched();
    require(Lane::holds(kLane) == (launches == 8), "the eighth kernel opens the lane");
  }

  // --- the program ---

  /// A kernel in this stream. The number of one in the lane's.
  int submit(CUstream stream) {
    return around_launch(stream, [&] {
      return stream == kLane ? add_to_queue(1, std::memory_order_acq_rel) + 1 : 0;
    });
  }
  /// One that uses a block whose last use has this number.
  void submit_behind(CUstream stream, int last_use) {
    around_launch(stream, [&] {
      look();
      require(std::max(waited_for[stream], done) >= last_use,
              "work comes behind that of the block's last owner");
      return 0;
    });
  }
  template <typename Launch>
  int around_launch(CUstream stream, const Launch& launch) {
    std::optional<InlineSubmission> submission;
    submission.emplace(driver, stream, "cuLaunchKernel");
    const int number = launch();
    const Throughout its_end;
    submission.reset();
    return number;
  }
  /// A free. Whether the block is handed out at once.
  static bool free() { return Lane::covers_free_at_once() || Lane::covers_free(driver); }

  // --- the driver. Its calls with one stream order threads; those with one event need not. ---

  int add_to_queue(int launches, std::memory_order order) {
    const auto change = [=](std::uint64_t before) {
      return before + static_cast<std::uint64_t>(launches);
    };
    return static_cast<int>(modify(queue, change, order, Site::here()));
  }
  void look() { glance(queue); }
  int launched() { return add_to_queue(0, std::memory_order_acq_rel); }
  /// The GPU ends all that was launched so far.
  void progress() { done = std::max(done, add_to_queue(0, std::memory_order_relaxed)); }

  /// The program destroys the lane's stream, or its context.
  void destroy(bool context) {
    if (context) {
      Lane::context_ends(&driver, kContext);
    } else {
      Lane::destroys(kLane);
    }
    add_to_queue(0, std::memory_order_relaxed);
    mark_ended = true;
    context_ended = context;
  }

  struct Event {
    Data<int> made;
    int at = 0;
  };
  static CUresult create(CUevent* event, unsigned) {
    now->events.push_back(std::make_unique<Event>());
    now->events.back()->made.write(1);
    *event = reinterpret_cast<CUevent>(now->events.back().get());
    return CUDA_SUCCESS;
  }
  static CUresult destroy(CUevent) { return CUDA_SUCCESS; }
  // The event, for one who has to see how it was made.
  static Event& use(CUevent handle) {
    auto* const event = reinterpret_cast<Event*>(handle);
    event->made.read();
    return *event;
  }
  static CUresult record(CUevent event, CUstream stream) {
    Event& recorded = use(event);
    require(stream != nullptr, "no mark goes to a default stream");
    if (stream != kLane) {
      recorded.at = now->waited_for[stream];
      return CUDA_SUCCESS;
    }
    const int launched = now->launched();
    require(!now->captures, "no event is recorded into a capture");
    require(!now->mark_ended, "no event is recorded in a stream that has ended");
    if (now->refuses) return CUDA_ERROR_OUT_OF_MEMORY;
    recorded.at = now->marked = launched;
    return CUDA_SUCCESS;
  }
  static Event& mark(CUevent event) {
    Event& used = use(event);
    now->look();
    require(!now->mark_ended, "no event is used that has ended with its context");
    return used;
  }
  static CUresult query(CUevent event) {
    return mark(event).at <= now->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult wait_on_device(CUstream stream, CUevent event, unsigned) {
    int& waited = now->waited_for[stream];
    waited = std::max(waited, mark(event).at);
    return CUDA_SUCCESS;
  }
  static CUresult wait_on_host(CUevent event) {
    const int at = mark(event).at;
    now->add_to_queue(0, std::memory_order_relaxed);
    now->done = std::max(now->done, at);
    return CUDA_SUCCESS;
  }
  static CUresult synchronize(CUstream) {
    now->progress();
    require(!now->mark_ended, "no stream is waited for that has ended");
    return CUDA_SUCCESS;
  }
  static CUresult synchronize_all() {
    now->progress();
    require(!now->context_ended, "no context is waited for that has ended");
    return CUDA_SUCCESS;
  }
  static CUresult current(CUcontext* context) {
    *context = kContext;
    return CUDA_SUCCESS;
  }
  static CUresult context_of(CUstream, CUcontext* context) { return current(context); }
  static Driver make_driver() {
    Driver made;
    made.cuEventCreate = create;
    made.cuEventDestroy_v2 = destroy;
    made.cuEventRecord = record;
    made.cuEventQuery = query;
    made.cuEventSynchronize = wait_on_host;
    made.cuStreamWaitEvent = wait_on_device;
    made.cuStreamSynchronize = synchronize;
    made.cuCtxSynchronize = synchronize_all;
    made.cuStreamGetCtx = context_of;
    made.cuCtxGetCurrent = current;
    return made;
  }

  static inline const CUcontext kContext = reinterpret_cast<CUcontext>(0x9000);
  static inline const Driver driver = make_driver();
  static inline Device* now = nullptr;

  Cell queue;  ///< how many kernels were launched in the lane
  int done = 0;
  bool captures = false;
  bool mark_ended = false;
  bool context_ended = false;
  bool refuses = false;  ///< to record a mark
  int marked = 0;
  std::vector<std::unique_ptr<Event>> events;
  std::map<CUstream, int> waited_for;
};

inline void expect_right(const Program& program) {
  const Result result = explore(program, 300000);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete) << result.executions << " executions";
  fflush(stdout);
}

// A device, and blocks that are freed in the lane: of each the number of its last use, once it is
// handed out.
struct World : Device {
  // A thread of the lane: a kernel that uses the block, and its free.
  void use_and_free(std::size_t block = 0) {
    const int last_use = submit(kLane);
    if (free()) freed[block].store(last_use, std::memory_order_release);
  }
  // Its free of a block that was used before.
  void free_used(std::size_t block = 0) {
    if (free()) freed[block].store(used, std::memory_order_release);
  }
  // Another thread takes the block to a stream of its own.
  void take_to(CUstream stream, std::size_t block = 0) {
    submit_behind(stream, freed[block].load(std::memory_order_acquire));
  }
  // A mark that is complete.
  void mark_before() {
    submit(kLane);
    require(free(), "the lane is open");
    progress();
    used = submit(kLane);
  }

  int used = submit(kLane);
  std::array<std::atomic<int>, 2> freed{0, 0};
};

}  // namespace explorer
