// SPDX-License-Identifier: Apache-2.0
// Start, fork and exit. All data here is plain and constant-initialised: exit handlers and other
// threads may still call at the end of the process.
#include "process/lifecycle.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <new>

#include "config/settings.h"
#include "cuda/dynamic_linker.h"
#include "engine/context/thread_order.h"
#include "engine/context/thread_slots.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/lane_history.h"
#include "engine/reclaim/pinned_memory.h"
#include "engine/reclaim/stream_use.h"
#include "process/background_visits.h"
#include "process/bounded.h"
#include "process/copies.h"
#include "process/forced_exit.h"
#include "process/housekeeping.h"
#include "process/interruption.h"
#include "process/modes.h"
#include "process/requests.h"
#include "process/sampler.h"
#include "process/signal_report.h"
#include "report/write.h"
#include "stats/snapshot.h"
#include "trace/leaks.h"
#include "trace/nvtx.h"
#include "trace/other_memory.h"
#include "trace/python_stack.h"
#include "trace/recorder.h"
#include "trace/sites.h"
#include "trace/watch.h"
#include "util/clock.h"
#include "util/descriptor.h"
#include "util/lock_order.h"
#include "util/log.h"
#include "util/path_pattern.h"
#include "util/uncancelled.h"

namespace cupool::process {
namespace {

std::atomic<observe::Observer*> observing{nullptr};
std::atomic<bool> stopped{false};
std::atomic<pid_t> owner{0};
std::atomic<bool> reported{false};
std::mutex start_mutex;
engine::Allocator* allocator = nullptr;  // at most one of these two is set
observe::Observer* measuring = nullptr;

// From now on the driver answers everything, and cupool takes no lock.
void stop() {
  detail::running.store(nullptr, std::memory_order_relaxed);
  observing.store(nullptr, std::memory_order_relaxed);
  stopped.store(true, std::memory_order_relaxed);
  engine::Lane::end_without_lock();
  engine::ThreadOrder::stop();
  engine::PinnedMemory::end_without_lock();
  engine::keep_thread_streams();
}

// I6: the child has nothing of its parent's GPU state, and locks may be held for ever in it.
void stop_in_child() {
  engine::StreamUse::forget();
  // Not left to the comparison with getpid(): in a pid namespace the ids may be equal.
  owner.store(0, std::memory_order_relaxed);
  stop();
  util::close_in_child();
}

// Called before start_mutex is taken, so that the fork handler covers that lock. Two threads may
// both register a handler; with a flag, the second might continue before the first has registered.
void watch_forks() {
  static std::atomic<bool> watching{false};
  if (watching.load(std::memory_order_acquire)) return;
  pthread_atfork(nullptr, nullptr, stop_in_child);
  watching.store(true, std::memory_order_release);
}

// Held while a report is composed. Its holder may ask the driver, unless that is shutting down.
std::mutex report_mutex;
std::atomic<bool> driver_leaves{false};
std::atomic<bool> report_is_stuck{false};  // its holder does not come back from the driver
constexpr std::chrono::milliseconds kNoWait{0};
constexpr std::chrono::milliseconds kShortWait{1000};
std::uint64_t snapshots = 0;

// Runs before all exit handlers registered earlier, including the driver's.
void driver_may_go_soon() {
  if (owner.load(std::memory_order_relaxed) != getpid()) return;
  if (stop_if_interrupted()) return;
  engine::Allocator* const live = engine();
  note_rdma_library(live != nullptr);
  const bool none_inside = end_background_visits();
  {
    // Waits for a snapshot in progress. Later ones do not ask the driver; its figures are read
    // here, as recent as the counters.
    const BoundedLock lock(report_mutex, none_inside ? kLongestWaitForVisits : kNoWait);
    if (lock && none_inside && live != nullptr) live->figures().refresh();
    report_is_stuck = !lock;
    driver_leaves = true;
  }
  if (live != nullptr) live->registry().distrust_hooks();
}

void report_at_quick_exit() {
  if (config::settings().stats.off()) {
    stop_if_interrupted();
  } else {
    driver_may_go_soon();  // for the report's figures
  }
  report_once(false);
}

// Never destroyed; written at the start, and again for the report, when the backend is known.
stats::ProcessInfo* identity = nullptr;

void describe_process() {
  if (identity == nullptr) identity = new stats::ProcessInfo(stats::this_process());
  if (!describe_modes(allocator, identity)) return;
  identity->settings.clear();
  for (const config::EffectiveValue& value : config::effective()) {
    identity->settings.push_back(
        {value.name, value.value, config::text_of(value.origin), value.is_default});
  }
  stats::set_process_info(*identity);
}

void refresh_figures(bool ask_driver) {
  if (allocator == nullptr) return measuring->refresh_figures();
  if (ask_driver) allocator->figures().refresh();
  allocator->figures().fold();
}

// Free bytes of the file system of an existing or future file.
std::uint64_t room_beside(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct statvfs system {};
  if (statvfs(folder.c_str(), &system) != 0) return 0;
  return static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
}

// Never destroyed; null without CUPOOL_STATS_INTERVAL.
stats::SampleRing* samples = nullptr;

// The formats and the file of the settings.
report::Destinations destinations_in_force() {
  const config::Settings& settings = config::settings();
  report::Destinations destinations;
  destinations.text = settings.stats.contains(config::StatsFormat::text);
  destinations.full_text = settings.stats.contains(config::StatsFormat::full);
  destinations.json = settings.stats.contains(config::StatsFormat::json);
  destinations.csv = settings.stats.contains(config::StatsFormat::csv);
  destinations.prometheus = settings.stats.contains(config::StatsFormat::prometheus);
  destinations.file_pattern = settings.stats_file;
  destinations.only_files = config::is_trial();
  destinations.one_line_of_ranks = settings.stats_ranks == config::StatsRanks::first;
  return destinations;
}

// The current data of a report; `number` as in the snapshot.
stats::Snapshot take_snapshot(bool ask_driver, std::uint64_t number) {
  ask_driver = ask_driver && !cuda::shut_down();
  refresh_figures(ask_driver);
  describe_process();
  stats::Snapshot snapshot = stats::take();
  snapshot.number = number;
  if (measuring != nullptr) snapshot.observation = measuring->read();
  // Work before the first allocation opens a lane whatever the settings say.
  if (allocator != nullptr && config::settings().lane) {
    snapshot.lane = engine::LaneHistory::read(util::now_ns());
  }
  if (samples != nullptr) {
    snapshot.series = samples->read();
    snapshot.series.samples.push_back(take_sample(*allocator, ask_driver));
  }
  snapshot.leaks = trace::live_by_call_site();
  snapshot.sites = trace::memory_by_site();
  const trace::TraceFigures traced = trace::trace_figures();
  snapshot.trace = {traced.path, traced.events, traced.dropped, traced.bytes};
  return snapshot;
}

// Writes a report. False if there is nothing to report.
bool write_report(bool ask_driver, std::uint64_t number, const report::Destinations& destinations) {
  const stats::Snapshot snapshot = take_snapshot(ask_driver, number);
  if (!snapshot.is_worth_a_report()) return false;
  report::write_reports(snapshot, destinations);
  return true;
}

// One interval of the series, and the Prometheus file with it. False: the process has written its
// last report.
bool sample_now() {
  const std::lock_guard<std::mutex> lock(report_mutex);
  if (reported.load(std::memory_order_acquire)) return false;
  const BackgroundVisit visit;
  if (!visit.allowed()) return true;  // the report has the last sample
  try {
    const bool ask_driver = !driver_leaves && !cuda::shut_down();
    samples->add(take_sample(*allocator, ask_driver));
    report::Destinations destinations = destinations_in_force();
    if (destinations.prometheus && !destinations.file_pattern.empty()) {
      destinations.only_prometheus = true;
      write_report(ask_driver, 0, destinations);
    }
  } catch (...) {
    CUPOOL_LOG(warn, "out of host memory: the time series lacks a sample");
  }
  return true;
}

void report_on_signal() {
  const std::lock_guard<std::mutex> lock(report_mutex);
  if (reported.load(std::memory_order_acquire)) return;
  trace::flush_trace();
  try {
    if (write_report(!driver_leaves, snapshots + 1, destinations_in_force())) ++snapshots;
  } catch (...) {
    CUPOOL_LOG(warn, "out of host memory: a snapshot of the report is missing");
  }
}

void report_at_the_end(bool ask_driver) {
  trace::finish_trace();
  if (config::settings().stats.off()) return;
  const BoundedLock lock(report_mutex, report_is_stuck ? kShortWait : kLongestWaitForVisits);
  if (!lock) {
    log::write_at_once(
        log::Level::warn,
        "no report: a snapshot or sample of it has not ended, as if the driver hung. "
        "For a report, set no CUPOOL_STATS_INTERVAL, and ask for none meanwhile");
    return;
  }
  try {
    write_report(ask_driver, 0, destinations_in_force());
  } catch (...) {
    CUPOOL_LOG(warn, "out of host memory: the report at exit is missing");
  }
}

void start_watchers() {
  const config::Settings& settings = config::settings();
  if (!settings.trace.empty()) {
    bool added = false;
    const std::string path = util::own_path(settings.trace, identity->start_wall_ns, &added);
    if (added && util::warns_of_added_rank()) {
      CUPOOL_LOG(warn,
                 "CUPOOL_TRACE %s does not tell ranks apart: each rank but 0 adds its own, as in "
                 "%s. With %%r in the name, the place is yours to choose",
                 settings.trace.c_str(), path.c_str());
    }
    trace::start_trace(path, settings.trace_limit.resolve(room_beside(path)));
    trace::add_watcher(trace::kTrace);
  }
  if (settings.leaks.one_in != 0) {
    trace::start_leaks(settings.leaks.one_in);
    trace::add_watcher(trace::kLeaks);
  }
  if (settings.leaks.one_in != 0 || trace::is_timeline()) trace::start_other_kinds();
  if (settings.sites.interval_bytes != 0) {
    if (trace::start_sites(settings.sites.interval_bytes, settings.sites.is_paced)) {
      trace::add_watcher(trace::kSites);
    } else {
      CUPOOL_LOG(warn, "out of host memory: CUPOOL_SITES has no effect");
    }
  }
  if (settings.nvtx) {
    trace::add_watcher(trace::kNvtx);
  }
}

// An observed run has no time series: there is no engine to sample.
void make_ring() {
  const config::Settings& settings = config::settings();
  const std::chrono::milliseconds interval = settings.stats_interval;
  if (interval.count() == 0 || settings.stats.off()) return;
  samples = new stats::SampleRing(static_cast<std::uint64_t>(interval.count()) * 1'000'000u);
}

void start_sampling() {
  if (!sample_every(config::settings().stats_interval, sample_now)) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_STATS_INTERVAL: cannot start its thread, so the report has no time series. Check "
        "the limit of threads (ulimit -u)");
  }
}

// False before cuInit, and in a child of a process that initialised the driver without allocating.
// In that child the driver refuses everything, and there is nothing to report.
bool accepts_calls(const cuda::Driver& driver) {
  CUcontext current = nullptr;
  return driver.cuCtxGetCurrent != nullptr && driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS;
}

// All that needs host memory, and so may fail; threads come last.
void prepare_engine(const cuda::Driver& driver) {
  const config::Settings& settings = config::settings();
  if (settings.mode == config::Mode::observe) {
    measuring = new observe::Observer(driver, settings);
  } else {
    allocator = new engine::Allocator(driver, settings);
  }
  note_rdma_library(allocator != nullptr);
  describe_process();
  if (allocator == nullptr) return;
  make_ring();
  start_watchers();
  start_housekeeping(*allocator, settings);
}

// What asks the dynamic linker, before start_mutex is taken: the linker holds its lock while
// constructors run, and one of them may be about to start the engine, too.
void look_up_symbols() {
  warn_of_other_copy();
  prepare_unwinder();
  const config::Settings& settings = config::settings();
  if (settings.sites.interval_bytes != 0) trace::find_python(cuda::real_dlsym());
  if (settings.nvtx && settings.mode == config::Mode::pool) trace::start_nvtx();
}

engine::Allocator* start_engine() {
  const cuda::Driver* driver = cuda::driver();
  if (driver == nullptr || !accepts_calls(*driver)) return nullptr;
  watch_forks();
  look_up_symbols();
  const std::lock_guard<std::mutex> lock(start_mutex);
  if (allocator != nullptr || measuring != nullptr || stopped.load(std::memory_order_relaxed)) {
    return detail::running.load(std::memory_order_relaxed);
  }
  config::announce_warnings();
  const bool observes = config::settings().mode == config::Mode::observe;
  if (!observes && !engine::watch_thread_end()) {
    CUPOOL_LOG(warn,
               "no thread-specific key is left (PTHREAD_KEYS_MAX): the driver serves. Have the "
               "program's libraries create fewer (pthread_key_create), or allocate GPU memory "
               "before they do");
    stop();
    return nullptr;
  }
  try {
    prepare_engine(*driver);
  } catch (const std::bad_alloc&) {
    CUPOOL_LOG(warn, "out of host memory at the start: the driver serves");
    stop();
    return nullptr;
  }
  owner.store(getpid(), std::memory_order_relaxed);
  atexit(driver_may_go_soon);
  at_quick_exit(report_at_quick_exit);
  detail::running.store(allocator, std::memory_order_release);
  observing.store(measuring, std::memory_order_release);
  const config::Settings& settings = config::settings();
  if (settings.stats_signal.value != 0 && !settings.stats.off()) {
    write_on_signal(settings.stats_signal.value, report_on_signal);
  }
  if (samples != nullptr) start_sampling();
  return allocator;
}

// The library's last action in a normal exit: after exit handlers and static destructors.
__attribute__((destructor)) void report_at_unload() {
  report_once(false);
}

}  // namespace

engine::Allocator* detail::start() {
  if (stopped.load(std::memory_order_relaxed) || cuda::shut_down()) return nullptr;
  if (!enabled()) {
    // No free waits here, so that no launch has to be looked at.
    [[maybe_unused]] static const bool ended = (engine::PinnedMemory::end_without_lock(), true);
    return nullptr;
  }
  if (observing.load(std::memory_order_acquire) != nullptr) return nullptr;
  return start_engine();
}

observe::Observer* observer() {
  observe::Observer* live = observing.load(std::memory_order_acquire);
  return live != nullptr && !cuda::shut_down() ? live : nullptr;
}

bool enabled() {
  const config::Settings& settings = config::settings();
  return settings.enable && settings.mode != config::Mode::off && is_first_copy();
}

bool stop_if_interrupted() {
  if (owner.load(std::memory_order_relaxed) != getpid()) return false;
  if (interrupted() == Interrupted::nothing) return false;
  util::LockOrder::begin_anew();
  driver_leaves = true;
  end_background_visits_at_once();
  stop();
  return true;
}

void report_once(bool driver_is_up) {
  const pid_t process = owner.load(std::memory_order_acquire);
  if (process == 0 || process != getpid()) return;
  if (reported.exchange(true, std::memory_order_acq_rel)) return;
  util::LockOrder::begin_anew();  // it may be a handler that leaves, whoever called that
  if (has_little_stack()) {
    const config::Settings& settings = config::settings();
    if (settings.stats.off() && settings.trace.empty()) return;
    log::write_at_once(log::Level::warn,
                       "no report, nor the end of a trace: the program left on a signal stack that "
                       "is too small for them (sigaltstack). Give it 32 KiB or more");
    return;
  }
  // Longer than any report that finds its locks free.
  constexpr int kPatienceMs = 500;
  const Interrupted by_signal = interrupted();
  if (by_signal == Interrupted::nothing) return report_at_the_end(driver_is_up);
  const bool written =
      by_signal != Interrupted::heap && do_within(kPatienceMs, [] { report_at_the_end(false); });
  if (!written && !config::settings().stats.off()) {
    log::write_at_once(log::Level::warn,
                       "no report: the program exited in a signal handler that had interrupted the "
                       "holder of a lock. For a report, exit after the handler has returned");
  }
}

int dump(const char* path) noexcept {
  if (engine() == nullptr) return CUPOOL_NOT_RUNNING;
  if (path == nullptr && config::settings().stats.off()) return CUPOOL_INVALID_ARGUMENT;
  const util::Uncancelled throughout;
  const std::lock_guard<std::mutex> lock(report_mutex);
  trace::flush_trace();
  try {
    if (path != nullptr) {
      const stats::Snapshot snapshot = take_snapshot(!driver_leaves, snapshots + 1);
      ++snapshots;
      const std::string file = util::expand_path_pattern(path, util::wall_ns());
      return report::write_report_to(file, snapshot) ? CUPOOL_OK : CUPOOL_FAILED;
    }
    if (write_report(!driver_leaves, snapshots + 1, destinations_in_force())) ++snapshots;
    return CUPOOL_OK;
  } catch (...) {
    return CUPOOL_FAILED;
  }
}

void report_before_exit(int status) {
  const pid_t process = owner.load(std::memory_order_acquire);
  if (process == 0 || process != getpid() || reported.load(std::memory_order_acquire)) return;
  force_exit_soon(status);
  report_once(!driver_leaves);
}

}  // namespace cupool::process
