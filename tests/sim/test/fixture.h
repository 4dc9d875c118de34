// SPDX-License-Identifier: Apache-2.0
// What the simulator's own tests share: a fresh primary context for every test, the built-in
// kernels, and memory that can be looked at from the host because device addresses are real.
#pragma once

#include <cuda.h>
#include <cupool_sim.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

namespace cupool::sim::test {

/// Sets variables before the driver reads them; one static object in a test file.
struct Variables {
  Variables(std::initializer_list<std::pair<const char*, const char*>> list) {
    for (const auto& entry : list) setenv(entry.first, entry.second, 1);
  }
};

inline uint32_t word(CUdeviceptr p, size_t i = 0) {
  return reinterpret_cast<const volatile uint32_t*>(p)[i];
}

class Sim : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cupoolSimSet("mode", "late"), 0);
    cupoolSimFail("");
    ASSERT_EQ(cuDeviceGet(&device, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  }

  void TearDown() override {
    cupoolSimFail("");
    cupoolSimSet("judge", "0");
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuThreadExchangeStreamCaptureMode(&mode);
    cuDevicePrimaryCtxReset(device);
    cuDevicePrimaryCtxRelease(device);
    cuCtxSetCurrent(nullptr);
  }

  CUresult launch(const char* kernel, CUstream stream, void** arguments) {
    CUfunction function = nullptr;
    const CUresult found = cuModuleGetFunction(&function, module, kernel);
    if (found != CUDA_SUCCESS) return found;
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
  }

  CUresult stamp(CUstream stream, CUdeviceptr p, uint64_t words, uint32_t value) {
    void* arguments[] = {&p, &words, &value};
    return launch("stamp_u32", stream, arguments);
  }

  CUresult check(CUstream stream, CUdeviceptr p, uint64_t words, uint32_t value, CUdeviceptr sum) {
    void* arguments[] = {&p, &words, &value, &sum};
    return launch("check_u32", stream, arguments);
  }

  CUresult spin(CUstream stream, uint64_t ns) {
    void* arguments[] = {&ns};
    return launch("spin_ns", stream, arguments);
  }

  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream s = nullptr;
    EXPECT_EQ(cuStreamCreate(&s, flags), CUDA_SUCCESS);
    return s;
  }

  CUevent event() {
    CUevent e = nullptr;
    EXPECT_EQ(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return e;
  }

  CUdeviceptr alloc(size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
    return p;
  }

  size_t free_bytes() {
    size_t free_now = 0;
    size_t total = 0;
    EXPECT_EQ(cuMemGetInfo(&free_now, &total), CUDA_SUCCESS);
    return free_now;
  }

  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
};

/// A test that counts the judge's complaints.
class JudgedSim : public Sim {
 protected:
  void SetUp() override {
    Sim::SetUp();
    ASSERT_EQ(cupoolSimSet("judge", "report"), 0);
    before = cupoolSimComplaints();
  }
  /// Since the test began.
  unsigned long long complaints() const { return cupoolSimComplaints() - before; }
  static void* pointer(CUdeviceptr p) { return reinterpret_cast<void*>(p); }

 private:
  unsigned long long before = 0;
};

}  // namespace cupool::sim::test
