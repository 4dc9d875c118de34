// SPDX-License-Identifier: Apache-2.0
// The substitute runtime, shared and static: built twice. It must reach the driver as the genuine
// one does, and treat errors and initialisation like it.
// Rules: what was measured of libcudart 13.0.
#include <cuda_runtime_api.h>
#include <cupool_sim.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

// From dlsym_counter.cpp: how often a name of CUDA was looked up, and which one last.
extern "C" int cuda_names_looked_up;
extern "C" char last_cuda_name[64];

namespace cupool::sim::test {

uint32_t word(const void* p) {
  return *static_cast<const volatile uint32_t*>(p);
}

unsigned long long calls(const char* name) {
  static const auto count = reinterpret_cast<decltype(&cupoolSimCalls)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cupoolSimCalls"));
  return count(name);
}

class Runtime : public ::testing::Test {
 protected:
  void TearDown() override {
    cudaDeviceReset();
    cudaGetLastError();
  }
};

// "calls dlsym for one CUDA name, cuGetProcAddress_v2"
TEST_F(Runtime, OneNameIsLookedUp) {
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  EXPECT_EQ(cuda_names_looked_up, 1);
  EXPECT_STREQ(last_cuda_name, "cuGetProcAddress_v2");
  EXPECT_GT(calls("cuGetProcAddress_v2"), 100u);
}

// A driver that does not say where its functions are is an error and no crash.
TEST_F(Runtime, ADriverThatLacksWhatAllHaveIsInsufficient) {
  setenv("CUPOOL_SIM_FAIL", "cuGetProcAddress_v2:10+=500", 1);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 4), cudaErrorInsufficientDriver);
  int devices = -1;
  EXPECT_EQ(cudaGetDeviceCount(&devices), cudaErrorInsufficientDriver);
}

TEST_F(Runtime, InitialisationIsLazy) {
  std::thread([] {
    EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
  }).join();
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 100), cudaSuccess) << "a thread without a context gets one";
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

// "cudaMalloc(0): success, null. [...] cudaMalloc(2^60): out of memory, and last error set."
TEST_F(Runtime, ErrorsOfMallocAndFree) {
  void* p = &p;
  EXPECT_EQ(cudaMalloc(&p, 0), cudaSuccess);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(cudaMalloc(nullptr, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(&p, size_t{1} << 60), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(Runtime, TheLastErrorIsTheThreads) {
  cudaMalloc(nullptr, 4);
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_F(Runtime, ResetAndOnWithIt) {
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(&p, 4), cudaSuccess);
}

TEST_F(Runtime, SetDeviceInitialisesAtOnce) {
  const unsigned long long before = calls("cuDevicePrimaryCtxRetain");
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_GT(calls("cuDevicePrimaryCtxRetain"), before);
  EXPECT_EQ(cudaSetDevice(7), cudaErrorInvalidDevice);
}

TEST_F(Runtime, StreamsEventsAndCopies) {
  cudaStream_t s = nullptr;
  cudaEvent_t e = nullptr;
  void* p = nullptr;
  uint32_t host = 0;
  ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(p, 1, 4, s), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(e, s), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(e), cudaErrorNotReady);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(cudaEventSynchronize(e), cudaSuccess);
  EXPECT_EQ(word(p), 0x01010101u);
  EXPECT_EQ(cudaMemcpy(&host, p, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host, 0x01010101u);
  EXPECT_EQ(cudaMemcpy(&host, p, 4, static_cast<cudaMemcpyKind>(9)),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(e), cudaSuccess);
}

TEST_F(Runtime, TheTwinsUseThePerThreadStream) {
  using Memset = cudaError_t (*)(void*, int, size_t, cudaStream_t);
  using Synchronize = cudaError_t (*)(cudaStream_t);
  const auto twin = reinterpret_cast<Memset>(dlsym(RTLD_DEFAULT, "cudaMemsetAsync_ptsz"));
  const auto wait =
      reinterpret_cast<Synchronize>(dlsym(RTLD_DEFAULT, "cudaStreamSynchronize_ptsz"));
  if (twin == nullptr) GTEST_SKIP() << "the static library exports nothing";
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  ASSERT_EQ(twin(p, 1, 4, nullptr), cudaSuccess);
  EXPECT_EQ(calls("cuMemsetD8Async_ptsz"), 1u);
  EXPECT_EQ(calls("cuMemsetD8Async"), 0u);
  ASSERT_EQ(wait(nullptr), cudaSuccess);
  EXPECT_EQ(word(p), 0x01010101u);
}

TEST_F(Runtime, PoolsAndAsyncAllocation) {
  cudaStream_t s = nullptr;
  cudaMemPool_t pool = nullptr;
  void* p = nullptr;
  uint64_t used = 0;
  ASSERT_EQ(cudaStreamCreate(&s), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  ASSERT_EQ(cudaMallocAsync(&p, 1 << 20, s), cudaSuccess);
  ASSERT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), cudaSuccess);
  EXPECT_EQ(used, 1u << 20);
  EXPECT_EQ(cudaFreeAsync(p, s), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
}

TEST_F(Runtime, KernelsComeFromLibraries) {
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  void* p = nullptr;
  uint64_t n = 4;
  uint32_t value = 9;
  ASSERT_EQ(cudaMalloc(&p, 16), cudaSuccess);
  ASSERT_EQ(cudaLibraryLoadData(&library, "", nullptr, nullptr, 0, nullptr, nullptr, 0),
            cudaSuccess);
  ASSERT_EQ(cudaLibraryGetKernel(&kernel, library, "stamp_u32"), cudaSuccess);
  void* arguments[] = {&p, &n, &value};
  ASSERT_EQ(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(32), arguments, 0,
                             nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(word(p), 9u);
}

TEST_F(Runtime, CapturesAndGraphs) {
  cudaStream_t s = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  void* p = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(p, 1, 4, s), cudaSuccess);
  void* q = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&q, 4), cudaSuccess);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  EXPECT_EQ(word(p), 0x01010101u);
}

TEST_F(Runtime, AttributesAndProperties) {
  void* p = nullptr;
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaMalloc(&p, 4), cudaSuccess);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, p), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 0);
  int local = 0;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &local), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  cudaDeviceProp properties{};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(properties.memoryPoolsSupported, 1);
  int version = 0;
  EXPECT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 13000);
}

TEST_F(Runtime, EntryPointsAreTheDrivers) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  ASSERT_EQ(
      cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, cudaEnableDefault, &status),
      cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  EXPECT_EQ(function, dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2"));
}

TEST_F(Runtime, Arrays) {
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindUnsigned};
  cudaArray_t array = nullptr;
  ASSERT_EQ(cudaMallocArray(&array, &format, 4, 2, 0), cudaSuccess);
  const std::vector<uint32_t> in = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<uint32_t> out(8);
  ASSERT_EQ(cudaMemcpy2DToArray(array, 0, 0, in.data(), 16, 16, 2, cudaMemcpyHostToDevice),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpy2DFromArray(out.data(), 16, array, 0, 0, 16, 2, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(in, out);
  EXPECT_EQ(cudaFreeArray(array), cudaSuccess);
}

}  // namespace cupool::sim::test
