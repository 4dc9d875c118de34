// SPDX-License-Identifier: Apache-2.0
// Keeps the GPU busy while pairs are measured: short kernels on non-blocking streams, topped up by
// a thread of its own, so that each stream always has some in flight and none runs far ahead. It
// counts how often it came too late: then the figure is not one of a busy GPU.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <thread>

#include "common/gpu_test.h"
#include "common/kernels.cuh"
#include "pairs_options.h"

namespace pairs {

class BusyStreams {
 public:
  explicit BusyStreams(const Options& options)
      : nanoseconds_(static_cast<uint64_t>(options.kernel_us) * 1000),
        depth_(static_cast<uint64_t>(options.depth)),
        lanes_(static_cast<size_t>(options.streams)) {
    for (Lane& lane : lanes_) {
      MUST(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
      lane.events.resize(depth_);
      for (cudaEvent_t& event : lane.events) {
        MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      }
    }
    if (lanes_.empty()) return;
    for (Lane& lane : lanes_) visit(&lane);
    thread_ = std::thread([this] { top_up(); });
  }
  ~BusyStreams() { stop(); }
  BusyStreams(const BusyStreams&) = delete;
  BusyStreams& operator=(const BusyStreams&) = delete;

  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    thread_.join();
    MUST(cudaDeviceSynchronize());
  }

  // After stop(). A look at a stream that has run out of kernels is a dry one.
  void print() const {
    if (lanes_.empty()) return;
    uint64_t kernels = 0;
    for (const Lane& lane : lanes_) kernels += lane.launched;
    const double share =
        looks_ == 0 ? 0.0 : static_cast<double>(dry_) / static_cast<double>(looks_);
    std::printf("info busy_streams=%zu busy_kernels=%" PRIu64 " busy_looks=%" PRIu64
                " busy_dry_share=%.6f\n",
                lanes_.size(), kernels, looks_, share);
  }

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    std::vector<cudaEvent_t> events;  // of the last kernels, by number
    uint64_t launched = 0;
    uint64_t completed = 0;
  };

  // "Not ready" stays as the thread's last error, which the next launch would be blamed for.
  static bool done(cudaEvent_t event) {
    const cudaError_t code = cudaEventQuery(event);
    if (code == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    MUST(code);
    return true;
  }

  void visit(Lane* lane) {
    while (lane->completed < lane->launched && done(lane->events[lane->completed % depth_])) {
      ++lane->completed;
    }
    if (lane->launched != 0) {
      ++looks_;
      dry_ += lane->completed == lane->launched;
    }
    while (lane->launched - lane->completed < depth_) {
      spin_ns<<<1, 1, 0, lane->stream>>>(nanoseconds_);
      MUST(cudaGetLastError());
      MUST(cudaEventRecord(lane->events[lane->launched % depth_], lane->stream));
      ++lane->launched;
    }
  }

  // Looks twice in a kernel's time and sleeps between: polling would compete for the driver's lock
  // with what is measured.
  void top_up() {
    while (!stopping_) {
      for (Lane& lane : lanes_) visit(&lane);
      std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds_ / 2));
    }
  }

  const uint64_t nanoseconds_;
  const uint64_t depth_;
  std::vector<Lane> lanes_;
  uint64_t looks_ = 0;
  uint64_t dry_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace pairs
