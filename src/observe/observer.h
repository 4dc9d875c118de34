// SPDX-License-Identifier: Apache-2.0
// CUPOOL_MODE=observe: every call goes to the real function, and its cost is measured. The engine
// does not run. The observer's own driver calls have no effect that the program can see.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "config/settings.h"
#include "cuda/capture_state.h"
#include "cuda/driver.h"
#include "stats/device_stats.h"
#include "stats/observation.h"
#include "util/clock.h"

namespace cupool::observe {

/// Thread-safe. Created once, never destroyed.
class Observer {
 public:
  Observer(const cuda::Driver& driver, const config::Settings& settings)
      : driver_(driver), settings_(settings) {}
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// Makes an allocation. After a success, `bytes()` returns its size.
  template <typename Bytes, typename Call>
  CUresult allocate(const Bytes& bytes, const CUdeviceptr* address, const Call& real) {
    const std::uint64_t start = util::now_ns();
    const CUresult result = real();
    const std::uint64_t duration = util::now_ns() - start;
    const bool served = result == CUDA_SUCCESS && address != nullptr;
    note_allocation(served ? *address : 0, served ? bytes() : 0, duration);
    return result;
  }

  /// Makes a free. Queries first whether the GPU is busy.
  template <typename Call>
  CUresult free(CUdeviceptr address, const Call& real) {
    const Freed freed = begin_free(address);
    const std::uint64_t start = util::now_ns();
    const CUresult result = real();
    end_free(freed, result, util::now_ns() - start);
    return result;
  }

  /// Whether the program has memory at `address` that allocate() has recorded.
  bool holds(CUdeviceptr address) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_.count(address) != 0;
  }

  /// Begins or ends a capture of `stream`. The GPU is not queried during captures: an event of the
  /// context would invalidate them (I3).
  template <typename Call>
  CUresult begin_capture(CUstream stream, const Call& begin) {
    const std::unique_lock<std::shared_mutex> lock(capture_mutex_);
    const bool is_listed = has_place_for_capture();
    const CUresult result = begin();
    if (result != CUDA_SUCCESS) return result;
    is_listed ? captures_.push_back(stream) : void(queries_no_more_ = true);
    return result;
  }
  template <typename Call>
  CUresult end_capture(CUstream stream, const Call& end) {
    const CUresult result = end();
    const std::unique_lock<std::shared_mutex> lock(capture_mutex_);
    if (!cuda::is_capturing(driver_, stream).value_or(false)) forget_capture(stream);
    return result;
  }
  /// Destroys `stream`, which ends its capture.
  template <typename Call>
  CUresult destroy_stream(CUstream stream, const Call& destroy) {
    const CUresult result = destroy();
    const std::unique_lock<std::shared_mutex> lock(capture_mutex_);
    if (result == CUDA_SUCCESS) forget_capture(stream);
    return result;
  }

  /// Counts a call of the program's own allocators, on the current device.
  void count(stats::Counter counter);

  /// Updates the statistics of live memory.
  void refresh_figures();

  stats::Observation read() const;

 private:
  enum class Gpu { idle, busy, unknown };
  struct Live {
    std::uint64_t bytes = 0;
    int ordinal = -1;
  };
  struct Freed {
    CUdeviceptr address = 0;
    Live live;
    bool known = false;
    Gpu gpu = Gpu::unknown;
  };
  /// The memory that pooling would have held on one device.
  struct Need {
    struct Blocks {
      std::uint64_t live = 0;
      std::uint64_t peak = 0;
    };
    std::map<std::uint64_t, Blocks> classes;  // by capacity
    std::uint64_t rounded = 0;
    std::uint64_t rounded_peak = 0;
    std::uint64_t total_bytes = 0;
  };

  void note_allocation(CUdeviceptr address, std::uint64_t bytes, std::uint64_t duration);
  Freed begin_free(CUdeviceptr address);
  void end_free(const Freed& freed, CUresult result, std::uint64_t duration);
  Gpu ask_gpu();
  bool has_place_for_capture();
  void forget_capture(CUstream stream);
  int current_ordinal() const;
  Need& need_of(int ordinal);
  void add_live(CUdeviceptr address, const Live& live) noexcept;
  void count_live(const Live& live, int sign);
  void count_thread();

  const cuda::Driver& driver_;
  const config::Settings& settings_;

  std::shared_mutex capture_mutex_;
  std::vector<CUstream> captures_;
  bool queries_no_more_ = false;  // a capture found no place above: its end will not be seen

  mutable std::mutex mutex_;  // guards the two members below
  std::unordered_map<CUdeviceptr, Live> live_;
  std::map<int, Need> needs_;

  std::atomic<std::uint64_t> threads_{0};
  std::atomic<std::uint64_t> mallocs_{0};
  std::atomic<std::uint64_t> malloc_ns_{0};
  std::atomic<std::uint64_t> unknown_frees_{0};
  std::atomic<std::uint64_t> unknown_free_ns_{0};
  stats::Histogram busy_free_time_;
  stats::Histogram idle_free_time_;
};

}  // namespace cupool::observe
