// SPDX-License-Identifier: Apache-2.0
// What the tests of capture share: a capture that a test begins and ends, and the calls that it
// minds or does not mind (docs/measurements/2026-11-22-h200-driver-facts.txt; measured
// call by call with an H200).
#pragma once

#include "fixture.h"

#include <functional>
#include <utility>
#include <vector>

namespace cupool::sim::test {

class Captures : public Sim {
 protected:
  void SetUp() override {
    Sim::SetUp();
    memory = alloc(4096);
    other = stream();
    recorded = event();
    ASSERT_EQ(cuEventRecord(recorded, other), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CUmemoryPool p = nullptr;
    ASSERT_EQ(cuDeviceGetDefaultMemPool(&p, device), CUDA_SUCCESS);
    pool = p;
  }

  void begin(unsigned flags, CUstreamCaptureMode mode) {
    capturing = stream(flags);
    if (into == nullptr) {
      ASSERT_EQ(cuStreamBeginCapture(capturing, mode), CUDA_SUCCESS);
    } else {
      ASSERT_EQ(cuStreamBeginCaptureToGraph(capturing, into, nullptr, nullptr, 0, mode),
                CUDA_SUCCESS);
    }
  }

  /// Ends the capture and tells whether it had survived.
  bool survived() {
    CUgraph graph = nullptr;
    const CUresult result = cuStreamEndCapture(capturing, &graph);
    if (graph != nullptr && graph != into) cuGraphDestroy(graph);
    EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        << result;
    return result == CUDA_SUCCESS;
  }

  static void relaxed(const std::function<void()>& body) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    body();
    ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  }

  /// Calls that are "potentially unsafe": refused in global mode, allowed in relaxed mode.
  std::vector<std::pair<const char*, std::function<CUresult()>>> unsafe() {
    return {
        {"cuMemAlloc",
         [] {
           CUdeviceptr p;
           return cuMemAlloc(&p, 64);
         }},
        {"cuMemFree(0)", [] { return cuMemFree(0); }},
        {"cuMemHostAlloc",
         [] {
           void* p;
           return cuMemHostAlloc(&p, 64, 0);
         }},
        {"cuMemAllocManaged",
         [] {
           CUdeviceptr p;
           return cuMemAllocManaged(&p, 64, 1);
         }},
        {"cuEventQuery", [this] { return cuEventQuery(recorded); }},
        {"cuEventSynchronize", [this] { return cuEventSynchronize(recorded); }},
        {"cuStreamQuery", [this] { return cuStreamQuery(other); }},
        {"cuStreamSynchronize", [this] { return cuStreamSynchronize(other); }},
        {"cuMemAllocAsync",
         [this] {
           CUdeviceptr p;
           return cuMemAllocAsync(&p, 64, other);
         }},
        {"cuMemPoolTrimTo", [this] { return cuMemPoolTrimTo(pool, 0); }},
        {"cuMemPoolGetAttribute",
         [this] {
           cuuint64_t v;
           return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v);
         }},
        {"cuMemPoolCreate",
         [this] {
           CUmemPoolProps props{};
           props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
           props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
           CUmemoryPool made;
           return cuMemPoolCreate(&made, &props);
         }},
    };
  }

  /// Calls that a capture elsewhere does not mind.
  std::vector<std::pair<const char*, std::function<CUresult()>>> harmless() {
    return {
        {"cuEventRecord", [this] { return cuEventRecord(event(), other); }},
        {"cuStreamWaitEvent", [this] { return cuStreamWaitEvent(other, recorded, 0); }},
        {"cuStreamCreate",
         [] {
           CUstream s;
           return cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
         }},
        {"cuMemGetInfo",
         [] {
           size_t n;
           return cuMemGetInfo(&n, &n);
         }},
        {"cuPointerGetAttribute",
         [this] {
           unsigned v;
           return cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory);
         }},
        {"cuMemcpyHtoDAsync",
         [this] {
           int v = 1;
           return cuMemcpyHtoDAsync(memory, &v, 4, other);
         }},
        {"cuMemcpyHtoD",
         [this] {
           int v = 1;
           return cuMemcpyHtoD(memory, &v, 4);
         }},
        {"cuMemsetD8", [this] { return cuMemsetD8(memory, 0, 4); }},
    };
  }

  CUdeviceptr memory = 0;
  CUstream other = nullptr;
  CUstream capturing = nullptr;
  CUgraph into = nullptr;  ///< captures go there if there is one
  CUevent recorded = nullptr;
  CUmemoryPool pool = nullptr;
};

}  // namespace cupool::sim::test
