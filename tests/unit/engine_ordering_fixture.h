// SPDX-License-Identifier: Apache-2.0
// Ordering against a driver table whose GPU the test moves by hand: what its tests share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/reclaim/ordering.h"
#include "engine/reclaim/serving.h"

namespace cupool::engine {

// What the fake driver did and what it shall answer; function pointers have no state of their
// own.
struct OrderingsGpu {
  std::vector<std::string> calls;
  std::map<CUevent, bool> complete;
  std::uintptr_t next_event = 1;
  CUresult record_result = CUDA_SUCCESS;
  int records_refused = 0;  // so often, before that answer
  CUresult query_result = CUDA_SUCCESS;
  CUresult alloc_result = CUDA_SUCCESS;
  CUresult alloc_host_result = CUDA_SUCCESS;
  CUresult wait_result = CUDA_SUCCESS;
  CUresult context_result = CUDA_SUCCESS;
  CUresult free_result = CUDA_SUCCESS;
};

class OrderingTest : public testing::Test {
 protected:
  static inline OrderingsGpu gpu;

  static inline const CUcontext kContext = reinterpret_cast<CUcontext>(0x1000);

  static CUresult fake_get_current(CUcontext* context) {
    *context = kContext;
    return CUDA_SUCCESS;
  }
  static CUresult fake_create_event(CUevent* event, unsigned int) {
    *event = reinterpret_cast<CUevent>(gpu.next_event++);
    return CUDA_SUCCESS;
  }
  static CUresult fake_record(CUcontext, CUevent event) {
    gpu.calls.emplace_back("record");
    if (gpu.records_refused > 0) return --gpu.records_refused, CUDA_ERROR_UNKNOWN;
    if (gpu.record_result == CUDA_SUCCESS) gpu.complete[event] = false;
    return gpu.record_result;
  }
  static CUresult fake_query(CUevent event) {
    if (gpu.query_result != CUDA_SUCCESS) return gpu.query_result;
    return gpu.complete.at(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult fake_wait(CUevent event) {
    gpu.calls.emplace_back("wait");
    if (gpu.wait_result == CUDA_SUCCESS) gpu.complete[event] = true;
    return gpu.wait_result;
  }
  static CUresult fake_synchronize() {
    gpu.calls.emplace_back("synchronize");
    return gpu.context_result;
  }

  static CUresult fake_alloc(CUdeviceptr* address, std::size_t) {
    if (gpu.alloc_result != CUDA_SUCCESS) return gpu.alloc_result;
    gpu.calls.emplace_back("alloc");
    *address = 0x7000;
    return CUDA_SUCCESS;
  }
  static CUresult fake_free(CUdeviceptr) {
    gpu.calls.emplace_back("free");
    return gpu.free_result;
  }
  static CUresult fake_alloc_host(void** address, std::size_t) {
    if (gpu.alloc_host_result != CUDA_SUCCESS) return gpu.alloc_host_result;
    gpu.calls.emplace_back("alloc host");
    *address = reinterpret_cast<void*>(0x9000);
    return CUDA_SUCCESS;
  }
  static CUresult fake_free_host(void* address) {
    EXPECT_EQ(address, reinterpret_cast<void*>(0x9000));
    gpu.calls.emplace_back("free host");
    return gpu.free_result;
  }

  OrderingTest() {
    gpu = OrderingsGpu{};
    driver_.cuCtxGetCurrent = fake_get_current;
    driver_.cuEventCreate = fake_create_event;
    driver_.cuCtxRecordEvent = fake_record;
    driver_.cuEventQuery = fake_query;
    driver_.cuEventSynchronize = fake_wait;
    driver_.cuCtxSynchronize = fake_synchronize;
    driver_.cuMemAlloc_v2 = fake_alloc;
    driver_.cuMemFree_v2 = fake_free;
  }
  // Tests leave captures open, which count in the whole process: in one run of all, the next test
  // would find them.
  ~OrderingTest() override {
    while (Serving::any_capture()) Serving::captures_end(1);
  }
  void fill_device() {
    gpu.alloc_result = CUDA_ERROR_OUT_OF_MEMORY;
    driver_.cuMemAllocHost_v2 = fake_alloc_host;
    driver_.cuMemFreeHost = fake_free_host;
  }
  EpochNumber retire(Ordering& ordering, Block& block) {
    block.capacity = 512;
    block.state.store(BlockState::freed);
    return ordering.epochs().retire(&block);
  }
  std::size_t reclaimed_count(Ordering& ordering) {
    BlockList reclaimed = ordering.pop_reclaimed();
    return reclaimed.count;
  }
  // Whether the ordering has handed the block over by now. Takes what reclaimed_count() would
  // count.
  bool is_reclaimed(Ordering& ordering, const Block& block) {
    BlockList taken = ordering.pop_reclaimed();
    handed_over_.splice(taken);
    const Block* each = handed_over_.head;
    while (each != nullptr && each != &block) each = each->next;
    return each != nullptr;
  }
  cuda::Driver driver_;
  stats::DeviceStats stats_;
  BlockList handed_over_;
};

}  // namespace cupool::engine
