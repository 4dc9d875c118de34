// SPDX-License-Identifier: Apache-2.0
// Each thread of the trace is a thread here and plays its calls without pauses. The driver is
// loaded by dlopen as in a program, so that a preloaded cupool intercepts it.
#include "cli/trial/replay_player.h"

#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "stats/histogram.h"
#include "util/clock.h"

namespace cupool::cli {

namespace {

#define CUPOOL_TEXT_OF(name) #name
// The driver's function of this name after cuda.h's macros; null if it has none.
#define CUPOOL_DRIVER_FUNCTION(library, name) \
  reinterpret_cast<decltype(&(name))>(dlsym(library, CUPOOL_TEXT_OF(name)))

struct Functions {
  explicit Functions(void* library)
      : init(CUPOOL_DRIVER_FUNCTION(library, cuInit)),
        error_name(CUPOOL_DRIVER_FUNCTION(library, cuGetErrorName)),
        retain(CUPOOL_DRIVER_FUNCTION(library, cuDevicePrimaryCtxRetain)),
        set_current(CUPOOL_DRIVER_FUNCTION(library, cuCtxSetCurrent)),
        synchronize(CUPOOL_DRIVER_FUNCTION(library, cuStreamSynchronize)),
        create_stream(CUPOOL_DRIVER_FUNCTION(library, cuStreamCreate)),
        allocate(CUPOOL_DRIVER_FUNCTION(library, cuMemAlloc)),
        free(CUPOOL_DRIVER_FUNCTION(library, cuMemFree)),
        allocate_async(CUPOOL_DRIVER_FUNCTION(library, cuMemAllocAsync)),
        free_async(CUPOOL_DRIVER_FUNCTION(library, cuMemFreeAsync)),
        write(CUPOOL_DRIVER_FUNCTION(library, cuMemsetD8Async)) {}

  decltype(&cuInit) init;
  decltype(&cuGetErrorName) error_name;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuStreamSynchronize) synchronize;
  decltype(&cuStreamCreate) create_stream;
  decltype(&cuMemAlloc) allocate;
  decltype(&cuMemFree) free;
  decltype(&cuMemAllocAsync) allocate_async;
  decltype(&cuMemFreeAsync) free_async;
  decltype(&cuMemsetD8Async) write;
};

void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw std::runtime_error(std::string(what) + " failed with error " + std::to_string(result));
}

// States of an address that a free, of any thread, waits for.
constexpr CUdeviceptr kNotYet = 0;
constexpr CUdeviceptr kFailed = 1;

struct Play {
  Play(const ReplayTrace& of, const ReplayOptions& with, const Functions& on, CUcontext in)
      : trace(of),
        options(with),
        driver(on),
        context(in),
        addresses(of.blocks),
        streams(of.blocks) {}

  const ReplayTrace& trace;
  const ReplayOptions options;
  const Functions& driver;
  const CUcontext context;
  std::vector<std::atomic<CUdeviceptr>> addresses;
  std::vector<CUstream> streams;  // on which each block was allocated and written
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<bool> go{false};
  stats::Histogram allocate_time;
  stats::Histogram free_time;
};

void allocate(Play& play, const ReplayEvent& event, CUstream stream) {
  CUdeviceptr address = 0;
  const std::uint64_t start = util::now_ns();
  const CUresult result = play.options.stream_ordered
                              ? play.driver.allocate_async(&address, event.bytes, stream)
                              : play.driver.allocate(&address, event.bytes);
  play.allocate_time.record(util::now_ns() - start);
  if (result != CUDA_SUCCESS) {
    play.failed.fetch_add(1, std::memory_order_relaxed);
    address = kFailed;
  } else if (play.options.touch) {
    play.driver.write(address, 1, event.bytes, stream);
  }
  play.streams[event.block] = stream;
  play.addresses[event.block].store(address, std::memory_order_release);
}

// In stream order, a block is freed on the stream that wrote it, by whichever thread.
void free_block(Play& play, const ReplayEvent& event) {
  CUdeviceptr address = kNotYet;
  while ((address = play.addresses[event.block].load(std::memory_order_acquire)) == kNotYet) {
    std::this_thread::yield();
  }
  if (address == kFailed) return;
  const std::uint64_t start = util::now_ns();
  const CUresult result = play.options.stream_ordered
                              ? play.driver.free_async(address, play.streams[event.block])
                              : play.driver.free(address);
  play.free_time.record(util::now_ns() - start);
  if (result != CUDA_SUCCESS) play.refused.fetch_add(1, std::memory_order_relaxed);
}

void play_thread(Play& play, const std::vector<ReplayEvent>& events) {
  CUstream stream = nullptr;
  play.driver.set_current(play.context);
  play.driver.create_stream(&stream, CU_STREAM_NON_BLOCKING);
  while (!play.go.load(std::memory_order_acquire)) std::this_thread::yield();
  for (const ReplayEvent& event : events) {
    event.is_free ? free_block(play, event) : allocate(play, event, stream);
  }
  play.driver.synchronize(stream);
}

nlohmann::json times_of(const stats::Histogram& histogram) {
  const stats::HistogramSummary time = histogram.summary();
  return {{"count", time.count},
          {"sum_ns", time.sum_ns},
          {"p50_ns", time.p50_ns},
          {"p99_ns", time.p99_ns},
          {"max_ns", time.max_ns}};
}

}  // namespace

std::string play(const ReplayTrace& trace, const ReplayOptions& options) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const Functions driver(library);
  if (driver.init == nullptr || driver.allocate == nullptr || driver.write == nullptr ||
      (options.stream_ordered && driver.allocate_async == nullptr)) {
    throw std::runtime_error("the driver is too old: it lacks a function that this replay needs");
  }
  CUcontext context = nullptr;
  const CUresult ready = driver.init(0);
  if (ready != CUDA_SUCCESS) {
    const char* name = nullptr;
    if (driver.error_name != nullptr) driver.error_name(ready, &name);
    throw std::runtime_error("cuInit failed with error " + std::to_string(ready) +
                             (name == nullptr ? "" : std::string(" (") + name + ")") +
                             ": no device to replay on. To find out why: cupool doctor /bin/true");
  }
  must(driver.retain(&context, 0), "cuDevicePrimaryCtxRetain");
  const auto state = std::make_unique<Play>(trace, options, driver, context);
  std::vector<std::thread> threads;
  for (const std::vector<ReplayEvent>& events : trace.threads) {
    threads.emplace_back(play_thread, std::ref(*state), std::cref(events));
  }
  const std::uint64_t start = util::now_ns();
  state->go.store(true, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  const std::uint64_t wall = util::now_ns() - start;
  const nlohmann::json json = {{"wall_ns", wall},
                               {"allocate", times_of(state->allocate_time)},
                               {"free", times_of(state->free_time)},
                               {"failed", state->failed.load()},
                               {"refused", state->refused.load()}};
  return json.dump();
}

}  // namespace cupool::cli
