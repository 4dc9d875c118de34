// SPDX-License-Identifier: Apache-2.0
// A process with one lane, against a driver that counts: what its tests share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <thread>

#include "engine/context/submission.h"
#include "engine/reclaim/lane.h"

namespace cupool::engine::lane_test {

// A driver that counts. Its events are complete when `complete` says so, or their last record went
// to a stream in `idle`.
struct Calls {
  int records = 0;
  int queries = 0;
  int waits = 0;
  int synchronised = 0;
  bool complete = false;
  CUresult record = CUDA_SUCCESS;
  CUstream waiting = nullptr;
  std::set<CUstream> idle;
  std::map<CUevent, CUstream> recorded;
  std::uintptr_t events = 0x7000;
};
inline Calls calls;
inline const auto one_context = reinterpret_cast<CUcontext>(0x10000);
inline const auto other_context = reinterpret_cast<CUcontext>(0x20000);
inline const auto created = reinterpret_cast<CUstream>(0x5000);
inline const auto second = reinterpret_cast<CUstream>(0x6000);

class LaneTest : public testing::Test {
 protected:
  LaneTest() {
    Lane::reset();
    calls = Calls{};
    driver_.cuCtxGetCurrent = [](CUcontext* context) {
      *context = one_context;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = one_context;
      return CUDA_SUCCESS;
    };
    driver_.cuEventCreate = [](CUevent* event, unsigned) {
      *event = reinterpret_cast<CUevent>(calls.events += 0x10);
      return CUDA_SUCCESS;
    };
    driver_.cuEventRecord = [](CUevent event, CUstream stream) {
      calls.records += stream == second ? 0 : 1;
      calls.recorded[event] = stream;
      return calls.record;
    };
    driver_.cuEventQuery = [](CUevent event) {
      ++calls.queries;
      const bool complete = calls.complete || calls.idle.count(calls.recorded[event]) != 0;
      return complete ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    driver_.cuEventSynchronize = [](CUevent) {
      ++calls.synchronised;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamSynchronize = [](CUstream) {
      ++calls.synchronised;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamWaitEvent = [](CUstream stream, CUevent, unsigned) {
      ++calls.waits;
      calls.waiting = stream;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
      *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
      return CUDA_SUCCESS;
    };
  }
  ~LaneTest() override { Lane::reset(); }

  void submit(CUstream stream) { const Submission submission(driver_, stream, "a call"); }
  // Enough work for the lane to open.
  void open(CUstream stream) {
    for (int i = 0; i < 8; ++i) const Submission submission(driver_, stream, "cuLaunchKernel");
    calls.records = 0;
  }
  // Whether work in the lane's stream brings the process back. It asks again once away for another
  // 16th of the time, which the test may have spent off its processor.
  bool returns(CUstream stream) {
    std::this_thread::sleep_for((std::chrono::steady_clock::now() - began_) / 8);
    for (int i = 0; i < 50 && !Lane::is_open(); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      submit(stream);
    }
    return Lane::is_open();
  }
  bool free_is_covered() { return Lane::covers_free_at_once() || Lane::covers_free(driver_); }

  cuda::Driver driver_{};
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace cupool::engine::lane_test
