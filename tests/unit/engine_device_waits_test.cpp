// SPDX-License-Identifier: Apache-2.0
// Where a stream waits for its thread's points: on the device, on the host, or not at all
// (docs/design.md, Order behind a free).
#include "engine/context/device_waits.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "engine_thread_order_fixture.h"

namespace cupool::engine {
namespace {

using thread_order_test::order;
using What = ThreadOrder::What;

class DeviceWaitsTest : public thread_order_test::ThreadOrderTest {
 protected:
  static CUstream blocking(std::uintptr_t number) {
    order.blocking.insert(stream(number));
    return stream(number);
  }
  void submit(CUstream stream, What what = What::work) {
    ThreadOrder::submits(*driver_, stream, what);
  }
  // Nothing is pending. Then work in `from`, a free, and `what` in `to`.
  void go(CUstream from, CUstream to, What what = What::work) {
    ThreadOrder::has_waited_for_context(context_->handle());
    submit(from);
    ASSERT_TRUE(frees());
    submit(to, what);
  }
  void second_thread_submits() {
    std::thread([&] {
      submit(stream(30));
      EXPECT_TRUE(frees());
      ThreadOrder::thread_ends(*driver_);
    }).join();
  }
};

TEST_F(DeviceWaitsTest, AThreadAloneWaitsOnTheDevice) {
  go(stream(1), blocking(2));
  EXPECT_EQ(order.waits, 1);
  go(stream(3), CU_STREAM_LEGACY);
  EXPECT_EQ(order.waits, 2);
  EXPECT_EQ(order.synchronised, 0);
}

TEST_F(DeviceWaitsTest, WhatOthersBlockingStreamsWaitForWaitsOnTheHost) {
  second_thread_submits();
  go(stream(1), blocking(2));
  EXPECT_EQ(order.synchronised, 1);
  go(stream(3), CU_STREAM_LEGACY);
  EXPECT_EQ(order.synchronised, 2);
  go(stream(4), CU_STREAM_PER_THREAD);
  EXPECT_EQ(order.synchronised, 3);
  EXPECT_EQ(order.waits, 0);
  go(stream(5), stream(6));
  EXPECT_EQ(order.waits, 1) << "nobody waits for that stream";
  EXPECT_EQ(order.synchronised, 3);
}

// The driver's free there keeps no thread of this context.
TEST_F(DeviceWaitsTest, BehindAnotherContextsPointTheHostWaits) {
  const CUstream abroad = stream(7);
  order.contexts[abroad] = reinterpret_cast<CUcontext>(0x99000);
  go(stream(1), abroad);
  EXPECT_EQ(order.waits, 1) << "a thread alone waits on the device";
  second_thread_submits();
  gpu.work.store(Work::held);
  std::atomic<bool> is_done{false};
  std::thread gpu_thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_done = true;
    gpu.finish();
  });
  go(stream(3), abroad);
  EXPECT_TRUE(is_done) << "it has waited";
  EXPECT_EQ(order.waits, 1);
  gpu_thread.join();
}

TEST_F(DeviceWaitsTest, OneThatWorksInTheLaneIsASecondThread) {
  std::thread([&] {
    ThreadOrder::submits_in_lane();
    ThreadOrder::thread_ends(*driver_);
  }).join();
  go(stream(1), blocking(2));
  EXPECT_EQ(order.synchronised, 1);
}

TEST_F(DeviceWaitsTest, AStreamOfAnUnknownKindIsTakenForABlockingOne) {
  second_thread_submits();
  order.flags = CUDA_ERROR_UNKNOWN;
  go(stream(1), stream(2));
  EXPECT_EQ(order.synchronised, 1);
}

TEST_F(DeviceWaitsTest, OneThatOnlyFreesIsNoSecondThread) {
  std::thread([&] {
    EXPECT_TRUE(frees());
    ThreadOrder::thread_ends(*driver_);
  }).join();
  go(stream(1), blocking(2));
  EXPECT_EQ(order.synchronised, 0);
  EXPECT_EQ(order.waits, 1);
}

}  // namespace
}  // namespace cupool::engine
