// SPDX-License-Identifier: Apache-2.0
// An engine that serves stream-ordered memory, on a driver that can refuse what gives it back.
#pragma once

#include <functional>

#include "engine_async_fixture.h"

namespace cupool::engine {

// What the driver refuses, and how often it was asked.
struct IdleDriver {
  CUresult event_create = CUDA_SUCCESS;
  CUresult stream_create = CUDA_SUCCESS;
  CUresult record = CUDA_SUCCESS;
  CUresult wait = CUDA_SUCCESS;
  CUresult query = CUDA_SUCCESS;
  int busy_queries = 0;  // so often an event is not complete
  int queries = 0;
  int records = 0;
  int frees = 0;
  CUevent recorded = nullptr;
  CUevent waited_for = nullptr;
  CUstream waiting = nullptr;
  CUstream freed_in = nullptr;
  int plain_frees = 0;
  CUresult plain_free = CUDA_SUCCESS;
  std::function<CUresult(CUstream)> is_stream_done;  // empty: with all other work
  std::function<void()> at_query;                    // of an event
};
inline IdleDriver idle_driver;

class AsyncIdleTest : public AsyncMemoryTest {
 protected:
  using To = AsyncIdle::To;

  void SetUp() override {
    idle_driver = IdleDriver{};
    AsyncMemoryTest::SetUp();
  }
  void TearDown() override {
    idle_driver = IdleDriver{};
    gpu.work.store(Work::none);
    AsyncMemoryTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = AsyncMemoryTest::make_driver();
    driver.cuEventCreate = [](CUevent* event, unsigned flags) {
      if (idle_driver.event_create != CUDA_SUCCESS) return idle_driver.event_create;
      return test::fake::create_event(event, flags);
    };
    driver.cuStreamCreate = [](CUstream* stream, unsigned flags) {
      if (idle_driver.stream_create != CUDA_SUCCESS) return idle_driver.stream_create;
      return test::fake::create_stream(stream, flags);
    };
    driver.cuCtxRecordEvent = [](CUcontext context, CUevent event) {
      ++idle_driver.records;
      idle_driver.recorded = event;
      if (idle_driver.record != CUDA_SUCCESS) return idle_driver.record;
      return test::fake::record(context, event);
    };
    driver.cuStreamWaitEvent = [](CUstream stream, CUevent event, unsigned) {
      idle_driver.waiting = stream;
      idle_driver.waited_for = event;
      return idle_driver.wait;
    };
    driver.cuStreamQuery = [](CUstream stream) {
      const auto& is_done = idle_driver.is_stream_done;
      if (is_done) return is_done(stream);
      return gpu.work == Work::held ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    driver.cuEventQuery = [](CUevent event) {
      ++idle_driver.queries;
      if (idle_driver.at_query) idle_driver.at_query();
      if (idle_driver.query != CUDA_SUCCESS) return idle_driver.query;
      if (idle_driver.busy_queries == 0) return test::fake::query(event);
      --idle_driver.busy_queries;
      return CUDA_ERROR_NOT_READY;
    };
    driver.cuMemFree_v2 = [](CUdeviceptr address) {
      if (idle_driver.plain_free != CUDA_SUCCESS) return idle_driver.plain_free;
      ++idle_driver.plain_frees;
      return test::fake::free_to_pool(address, nullptr);
    };
    driver.cuMemFreeAsync = [](CUdeviceptr address, CUstream stream) {
      ++idle_driver.frees;
      idle_driver.freed_in = stream;
      return test::fake::free_to_pool(address, stream);
    };
    return driver;
  }
  AsyncIdle& idle() { return async().idle(); }
  std::uint64_t idle_bytes() { return idle().bytes(context_->device()); }
  // As endings_ does, beside the driver's call.
  void end_context() {
    idle().context_ends(*context_);
    allocator_->endings().context_gone(*context_);
  }
};

}  // namespace cupool::engine
