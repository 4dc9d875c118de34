// SPDX-License-Identifier: Apache-2.0
// Threads that submit work and free, and what that asks of a driver which counts.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <vector>

#include "engine/context/thread_order.h"
#include "engine/reclaim/lane.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine::thread_order_test {

struct OrderCalls {
  std::atomic<int> waits{0};         // of streams, on the device
  std::atomic<int> synchronised{0};  // of the host, for an event
  std::atomic<int> records{0};
  std::atomic<int> of_context{0};
  std::atomic<CUstream> waiting{nullptr};
  CUresult wait = CUDA_SUCCESS;
  CUresult record = CUDA_SUCCESS;
  CUresult record_context = CUDA_SUCCESS;
  CUresult create = CUDA_SUCCESS;
  CUresult current = CUDA_SUCCESS;
  CUresult stream_context = CUDA_SUCCESS;
  CUresult flags = CUDA_SUCCESS;
  std::map<CUstream, CUcontext> contexts;  // of streams that are not in the test's own
  std::set<CUstream> blocking;             // the others are non-blocking
};
inline OrderCalls order;

class ThreadOrderTest : public FastPathTest {
 protected:
  void SetUp() override {
    order.waits = order.synchronised = order.records = order.of_context = 0;
    order.waiting = nullptr;
    order.wait = order.record = order.record_context = order.create = CUDA_SUCCESS;
    order.current = order.stream_context = CUDA_SUCCESS;
    order.flags = CUDA_SUCCESS;
    order.contexts.clear();
    order.blocking.clear();
    ThreadOrder::reset();
    Lane::reset();
    FastPathTest::SetUp();
  }
  void TearDown() override {
    order.current = CUDA_SUCCESS;
    gpu.work.store(Work::none);
    ThreadOrder::reset();
    Lane::reset();
    FastPathTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver();
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = test::fake::context();
      return order.current;
    };
    driver.cuCtxPushCurrent_v2 = [](CUcontext) { return CUDA_SUCCESS; };
    driver.cuCtxPopCurrent_v2 = [](CUcontext*) { return CUDA_SUCCESS; };
    driver.cuStreamGetCtx = [](CUstream stream, CUcontext* context) {
      const auto other = order.contexts.find(stream);
      *context = other == order.contexts.end() ? test::fake::context() : other->second;
      return order.stream_context;
    };
    driver.cuStreamGetFlags = [](CUstream stream, unsigned* flags) {
      const bool blocking = order.blocking.count(stream) != 0;
      *flags = blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
      return order.flags;
    };
    driver.cuEventCreate = [](CUevent* event, unsigned flags) {
      return order.create == CUDA_SUCCESS ? test::fake::create_event(event, flags) : order.create;
    };
    driver.cuEventDestroy_v2 = [](CUevent) { return CUDA_SUCCESS; };
    driver.cuEventRecord = [](CUevent event, CUstream) {
      if (order.record != CUDA_SUCCESS) return order.record;
      ++order.records;
      return test::fake::record(nullptr, event);
    };
    driver.cuCtxRecordEvent = [](CUcontext context, CUevent event) {
      if (order.record_context != CUDA_SUCCESS) return order.record_context;
      ++order.of_context;
      return test::fake::record(context, event);
    };
    driver.cuStreamWaitEvent = [](CUstream stream, CUevent, unsigned) {
      if (order.wait != CUDA_SUCCESS) return order.wait;
      ++order.waits;
      order.waiting = stream;
      return CUDA_SUCCESS;
    };
    driver.cuEventSynchronize = [](CUevent event) {
      ++order.synchronised;
      return test::fake::wait(event);
    };
    return driver;
  }
  static CUstream stream(std::uintptr_t number) {
    return reinterpret_cast<CUstream>(0x50000 + 0x100 * number);
  }
  void submit(std::uintptr_t number) { ThreadOrder::submits(*driver_, stream(number)); }
  bool frees() { return ThreadOrder::frees(*driver_, *context_); }
  // The `number`th other context, of the stream of that number. Never destroyed.
  Context& other_context(std::uintptr_t number) {
    static auto* const kept = new std::vector<Context*>;
    const auto handle = reinterpret_cast<CUcontext>(0x9000000 + 0x1000 * number);
    kept->push_back(new Context(*driver_, handle, context_->device()));
    order.contexts[stream(number)] = handle;
    return *kept->back();
  }
};

}  // namespace cupool::engine::thread_order_test
