// SPDX-License-Identifier: Apache-2.0
// An engine that serves page-locked memory, on a driver that refuses what a test says.
#pragma once

#include <utility>
#include <vector>

#include "engine/context/thread_order.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/pending_work.h"
#include "engine/serve/host_memory.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {

struct PinnedDriver {
  std::uintptr_t next = 0x7100000000;
  int allocations = 0;
  std::vector<void*> freed;
  CUresult current = CUDA_SUCCESS;  // the answer of cuCtxGetCurrent
  bool has_context = true;
  CUresult wait = CUDA_SUCCESS;
  CUresult record = CUDA_SUCCESS;        // of an event on a stream
  int frees_refused = 0;                 // so often cuMemFreeHost fails
  bool busy_after_a_free = false;        // the program submits work meanwhile
  bool short_work_after_a_free = false;  // the same, and it is complete at once
  bool busy_at_a_query = false;
  std::uint64_t idle_at_ns = 0;                  // from then on the GPU has nothing to do; 0: never
  CUresult device_pointer = CUDA_ERROR_UNKNOWN;  // the answer of cuMemHostGetDevicePointer
  Context* ends = nullptr;  // in a wait, or else in a call of cuMemHostGetDevicePointer
  bool ends_in_a_wait = false;
};
inline PinnedDriver pinned;

// Another thread ends the context in a call of the driver's. What follows from it comes later.
inline bool context_ends(bool in_a_wait) {
  if (pinned.ends == nullptr || pinned.ends_in_a_wait != in_a_wait) return false;
  std::exchange(pinned.ends, nullptr)->set_gone();
  return true;
}

class HostRefusalTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kMiB = 1 << 20;

  void SetUp() override {
    PendingWork::reset();
    pinned = PinnedDriver{};
    static std::uintptr_t tests = 0;  // the table of page-locked memory is the process's
    pinned.next += ++tests << 32;
    FastPathTest::SetUp();
    start({{"CUPOOL_HOST_MAX_CACHED", "4M"}, {"CUPOOL_FREE_MODE", "auto"}});
  }
  void TearDown() override {
    gpu.work.store(Work::none);
    pinned = PinnedDriver{};
    Lane::reset();
    ContextRegistry::current_may_change();
    PendingWork::reset();
    ThreadOrder::reset();
    FastPathTest::TearDown();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver();
    if (no_context_events) driver.cuCtxRecordEvent = nullptr;
    driver.cuMemFreeHost = [](void* address) {
      if (pinned.frees_refused != 0) {
        --pinned.frees_refused;
        return CUDA_ERROR_UNKNOWN;
      }
      pinned.freed.push_back(address);
      if (pinned.busy_after_a_free) {
        gpu.work.store(Work::held);
        PendingWork::submitted();
      }
      if (pinned.short_work_after_a_free) PendingWork::submitted();
      return CUDA_SUCCESS;
    };
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = pinned.has_context ? test::fake::context() : nullptr;
      return pinned.current;
    };
    driver.cuEventSynchronize = [](CUevent event) {
      if (context_ends(true)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      return pinned.wait == CUDA_SUCCESS ? test::fake::wait(event) : pinned.wait;
    };
    driver.cuEventQuery = [](CUevent event) {
      if (pinned.busy_at_a_query) PendingWork::submitted();
      if (pinned.idle_at_ns != 0 && util::now_ns() >= pinned.idle_at_ns) gpu.work = Work::none;
      return test::fake::query(event);
    };
    driver.cuPointerGetAttribute = [](void*, CUpointer_attribute, CUdeviceptr) {
      return CUDA_ERROR_UNKNOWN;
    };
    driver.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = test::fake::context();
      return CUDA_SUCCESS;
    };
    driver.cuEventRecord = [](CUevent event, CUstream) {
      return pinned.record == CUDA_SUCCESS ? test::fake::record(nullptr, event) : pinned.record;
    };
    driver.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned) {
      context_ends(false);
      if (pinned.device_pointer == CUDA_SUCCESS) *device = reinterpret_cast<CUdeviceptr>(host);
      return pinned.device_pointer;
    };
    return driver;
  }
  static inline bool no_context_events = false;  // a driver before 12.5
  HostMemory& host() { return allocator_->host(); }

  static void* fresh(std::size_t bytes) {
    ++pinned.allocations;
    void* const address = reinterpret_cast<void*>(pinned.next);
    pinned.next += (bytes + 4095) / 4096 * 4096;
    return address;
  }
  // As the hook: from the cache, or by the driver.
  void* allocate_host(std::size_t bytes, unsigned kind = 0) {
    void* address = nullptr;
    const auto real = [&](std::size_t wanted) {
      address = fresh(wanted);
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(host().allocate(&address, bytes, kind, real), CUDA_SUCCESS);
    return address;
  }
  // Memory that the driver hands out at `address`, as the test says.
  void allocate_at(void* at, std::size_t bytes) {
    void* address = nullptr;
    const auto real = [&](std::size_t) {
      address = at;
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(host().allocate(&address, bytes, 0, real), CUDA_SUCCESS);
    EXPECT_EQ(address, at);
  }
  // The thread knows its context.
  void registry_current() { EXPECT_EQ(allocator_->registry().current(), context_); }
  std::uint64_t known() { return host().blocks().bytes(); }
};

}  // namespace cupool::engine
