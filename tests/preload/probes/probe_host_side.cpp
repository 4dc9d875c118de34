// SPDX-License-Identifier: Apache-2.0
// What a free says to the host, by the driver interface alone: case=interior, a device pointer
// inside page-locked memory that is freed again; case=elsewhere, host memory of cuMemCreate;
// case=managed, many managed blocks beside other
// frees; case=callback, allocations and frees in host functions; case=kept, page-locked memory that
// a refused call, or what was there before, leaves as it is; case=rescued, a launch whose first
// attempt is refused; case=library, zero-copy memory of a library (library=: its path).
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"
#include "probe_gpu.h"

namespace {

using probe::Gpu;
using probe::kBytes;
using probe::warm_up;

// Whether a kernel of another stream is over when a free returns.
bool free_waits(const Gpu& gpu, std::uint64_t kernel_ns) {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  gpu.work(kernel_ns);
  MUST(cuMemFree(block));
  const bool waited = cuStreamQuery(gpu.stream) == CUDA_SUCCESS;
  MUST(cuCtxSynchronize());
  return waited;
}

// Whether a free waits for it. The thread may have lost its processor for as long as a short one
// takes: then a longer one tells.
bool free_waits(const Gpu& gpu) {
  return free_waits(gpu, 20'000'000) && free_waits(gpu, 200'000'000);
}

// The waits are cupool's to print: the driver always waits.
int interior() {
  const Gpu gpu;
  warm_up();
  constexpr std::size_t kHostBytes = 64 * kBytes;
  std::printf("before=%d\n", free_waits(gpu));
  for (const char* kind : {"allocated", "registered"}) {
    const bool allocated = kind[0] == 'a';
    void* host = nullptr;
    std::vector<char> memory(kHostBytes);
    if (allocated) {
      MUST(cuMemHostAlloc(&host, kHostBytes, CU_MEMHOSTALLOC_DEVICEMAP));
    } else {
      host = memory.data();
      MUST(cuMemHostRegister(host, kHostBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    }
    for (std::size_t at = kBytes; at < kHostBytes; at += kBytes) {
      CUdeviceptr device = 0;
      MUST(cuMemHostGetDevicePointer(&device, static_cast<char*>(host) + at, 0));
    }
    std::printf("%s while=%d", kind, free_waits(gpu));
    MUST(allocated ? cuMemFreeHost(host) : cuMemHostUnregister(host));
    std::printf(" after=%d\n", free_waits(gpu));
  }
  return 0;
}

// Host memory that no table has: a kernel may be given any address in it.
int elsewhere() {
  const Gpu gpu;
  warm_up();
  std::printf("before=%d", free_waits(gpu));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle handle = 0;
  cuMemCreate(&handle, std::size_t{2} << 20, &properties, 0);
  std::printf(" after=%d\n", free_waits(gpu));
  return 0;
}

int managed(int count) {
  const Gpu gpu;
  warm_up();
  std::vector<CUdeviceptr> all(static_cast<std::size_t>(count));
  for (CUdeviceptr& block : all) {
    MUST(cuMemAllocManaged(&block, kBytes, CU_MEM_ATTACH_GLOBAL));
  }
  std::printf("while=%d", free_waits(gpu));
  for (const CUdeviceptr block : all) MUST(cuMemFree(block));
  std::printf(" after=%d\n", free_waits(gpu));
  return 0;
}

// A free waits for a host function, which waits for another thread that begins and ends a capture.
struct Beside {
  std::mutex mutex;
  std::condition_variable changed;
  bool called = false;
  bool may_return = false;
  void say(bool* what) {
    const std::lock_guard<std::mutex> lock(mutex);
    *what = true;
    changed.notify_all();
  }
  void await(const bool& what) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return what; });
  }
};

int beside() {
  const Gpu gpu;
  warm_up();
  Beside beside;
  CUdeviceptr block = 0;
  CUcontext context = nullptr;
  MUST(cuCtxGetCurrent(&context));
  MUST(cuMemAlloc(&block, kBytes));
  const auto stand = [](void* data) {
    auto* const shared = static_cast<Beside*>(data);
    shared->say(&shared->called);
    shared->await(shared->may_return);
  };
  MUST(cuLaunchHostFunc(gpu.stream, stand, &beside));
  std::thread other([&] {
    MUST(cuCtxSetCurrent(context));
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    beside.await(beside.called);  // by now somebody waits for the device
    CUgraph graph = nullptr;
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(cuStreamEndCapture(stream, &graph));
    beside.say(&beside.may_return);
  });
  MUST(cuMemFree(block));
  other.join();
  std::printf("done\n");
  return 0;
}

// Managed and zero-copy memory that goes with a second context.
int contexts() {
  const Gpu gpu;
  warm_up();
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  CUdeviceptr block = 0;
  CUdeviceptr device = 0;
  void* host = nullptr;
  MUST(cuCtxGetCurrent(&first));
  MUST(cuCtxCreate(&second, nullptr, 0, 0));
  MUST(cuMemAllocManaged(&block, kBytes, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemHostAlloc(&host, kBytes, CU_MEMHOSTALLOC_DEVICEMAP));
  MUST(cuMemHostGetDevicePointer(&device, host, 0));
  MUST(cuCtxSetCurrent(first));
  std::printf("while=%d", free_waits(gpu));
  MUST(cuCtxDestroy(second));
  std::printf(" after=%d\n", free_waits(gpu));
  return 0;
}

struct Answers {
  CUdeviceptr block = 0;
  CUresult allocation = CUDA_ERROR_UNKNOWN;
  CUresult free = CUDA_ERROR_UNKNOWN;
  CUresult free_in_stream = CUDA_ERROR_UNKNOWN;
  CUresult wrong_free = CUDA_ERROR_UNKNOWN;
};

void ask(void* data) {
  auto* answers = static_cast<Answers*>(data);
  CUdeviceptr other = 0;
  answers->allocation = cuMemAlloc(&other, kBytes);
  answers->free = cuMemFree(answers->block);
  answers->free_in_stream = cuMemFreeAsync(answers->block, nullptr);
  answers->wrong_free = cuMemFree(answers->block + 256);
}

int callback() {
  const Gpu gpu;
  warm_up();
  for (int round = 0; round < 3; ++round) {
    Answers answers;
    MUST(cuMemAlloc(&answers.block, kBytes));
    MUST(cuLaunchHostFunc(gpu.stream, ask, &answers));
    MUST(cuStreamSynchronize(gpu.stream));
    std::printf("allocation=%d free=%d free_in_stream=%d wrong_free=%d",
                static_cast<int>(answers.allocation), static_cast<int>(answers.free),
                static_cast<int>(answers.free_in_stream), static_cast<int>(answers.wrong_free));
    std::printf(" then: free=%d", static_cast<int>(cuMemFree(answers.block)));
    std::printf(" again=%d\n", static_cast<int>(cuMemFree(answers.block)));
  }
  return 0;
}

int library(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != nullptr);
  auto* const allocate =
      reinterpret_cast<int (*)(void**, void**, std::size_t)>(dlsym(handle, "net_zero_copy"));
  CHECK(allocate != nullptr);
  const Gpu gpu;
  warm_up();
  void* host = nullptr;
  void* device = nullptr;
  MUST(allocate(&host, &device, kBytes));
  std::printf("while=%d\n", free_waits(gpu));
  return 0;
}

// Whether what a kernel writes to `at` is there right after a free of something else.
void see_kept(const char* what, std::uint32_t* at) {
  const Gpu gpu;
  warm_up();
  CUdeviceptr block = 0;
  CUdeviceptr source = 0;
  MUST(cuMemAlloc(&source, kBytes));
  MUST(cuMemsetD8(source, 0x5a, kBytes));
  MUST(cuMemAlloc(&block, kBytes));
  *at = 0;
  std::uint64_t words = 16;
  void* arguments[] = {&at, &source, &words};
  MUST(cuCtxSynchronize());
  gpu.work(20'000'000);
  MUST(cuLaunchKernel(gpu.copy, 1, 1, 1, 32, 1, 1, 0, gpu.stream, arguments, nullptr));
  MUST(cuMemFree(block));
  std::printf("%s there=%d\n", what, *static_cast<volatile std::uint32_t*>(at) == 0x5a5a5a5a);
  MUST(cuCtxSynchronize());
  MUST(cuMemFree(source));
}

int kept() {
  constexpr std::size_t kArea = 1 << 20;
  const Gpu gpu;
  warm_up();
  void* const area =
      mmap(nullptr, kArea, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(area != MAP_FAILED);
  auto* const bytes = static_cast<unsigned char*>(area);
  auto* const middle = reinterpret_cast<std::uint32_t*>(bytes + kArea / 2);
  // A part was page-locked in a context that has ended.
  MUST(cuMemHostRegister(bytes + 16 * kBytes, kBytes, 0));
  MUST(cuDevicePrimaryCtxReset(0));
  const Gpu again;
  MUST(cuMemHostRegister(area, kArea, 0));
  see_kept("reset", middle);
  // Calls that the driver refuses.
  std::printf("free=%d\n", static_cast<int>(cuMemFreeHost(area)));
  see_kept("not allocated", middle);
  std::printf("unregister=%d\n", static_cast<int>(cuMemHostUnregister(bytes + kBytes)));
  see_kept("not registered", middle);
  MUST(cuMemHostUnregister(area));
  void* host = nullptr;
  CUgraph graph = nullptr;
  for (const unsigned flags : {0u, unsigned{CU_MEMHOSTALLOC_WRITECOMBINED}}) {
    MUST(cuMemHostAlloc(&host, kBytes, flags));
    MUST(cuStreamBeginCapture(again.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    std::printf("free=%d", static_cast<int>(cuMemFreeHost(host)));
    std::printf(" capture=%d\n", static_cast<int>(cuStreamEndCapture(again.stream, &graph)));
    see_kept("in a capture", static_cast<std::uint32_t*>(host));
    MUST(cuMemFreeHost(host));
  }
  return 0;
}

// Launches that find memory only once idle memory went back, if the driver refuses the first
// attempt (CUPOOL_SIM_FAIL).
int rescued(bool by_configuration) {
  constexpr std::size_t kIdle = 64 << 20;
  const Gpu gpu;
  warm_up();
  void* host = nullptr;
  CUdeviceptr block = 0;
  CUdeviceptr source = 0;
  CUdeviceptr idle = 0;
  MUST(cuMemHostAlloc(&host, kBytes, 0));
  MUST(cuMemAlloc(&source, kBytes));
  MUST(cuMemsetD8(source, 0x5a, kBytes));
  MUST(cuMemAlloc(&block, kBytes));
  MUST(cuMemAlloc(&idle, kIdle));
  MUST(cuMemFree(idle));
  MUST(cuCtxSynchronize());
  auto* at = static_cast<std::uint32_t*>(host);
  *at = 0;
  std::uint64_t words = 16;
  void* arguments[] = {&at, &source, &words};
  CUlaunchConfig configuration = {};
  configuration.gridDimX = configuration.gridDimY = configuration.gridDimZ = 1;
  configuration.blockDimX = 32;
  configuration.blockDimY = configuration.blockDimZ = 1;
  configuration.hStream = gpu.stream;
  gpu.work(20'000'000);
  const CUresult result =
      by_configuration
          ? cuLaunchKernelEx(&configuration, gpu.copy, arguments, nullptr)
          : cuLaunchCooperativeKernel(gpu.copy, 1, 1, 1, 32, 1, 1, 0, gpu.stream, arguments);
  MUST(cuMemFree(block));
  std::printf("launch=%d there=%d\n", static_cast<int>(result),
              *static_cast<volatile std::uint32_t*>(at) == 0x5a5a5a5a);
  MUST(cuCtxSynchronize());
  return 0;
}

// Fills and copies of device memory alone, beside page-locked memory: no free has to wait.
int unaimed() {
  const Gpu gpu;
  warm_up();
  void* host = nullptr;
  CUdeviceptr device = 0;
  MUST(cuMemHostAlloc(&host, kBytes, 0));
  MUST(cuMemAlloc(&device, 2 * kBytes));
  MUST(cuMemsetD8Async(device, 1, kBytes, gpu.stream));
  MUST(cuMemcpyDtoDAsync(device + kBytes, device, kBytes, gpu.stream));
  std::printf("waits=%d\n", free_waits(gpu));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (probe::argument_is(argc, argv, "case", "interior")) return interior();
  if (probe::argument_is(argc, argv, "case", "elsewhere")) return elsewhere();
  if (probe::argument_is(argc, argv, "case", "managed")) return managed(2000);
  if (probe::argument_is(argc, argv, "case", "beside")) return beside();
  if (probe::argument_is(argc, argv, "case", "contexts")) return contexts();
  if (probe::argument_is(argc, argv, "case", "callback")) return callback();
  if (probe::argument_is(argc, argv, "case", "unaimed")) return unaimed();
  if (probe::argument_is(argc, argv, "case", "kept")) return kept();
  if (probe::argument_is(argc, argv, "case", "rescued")) {
    return rescued(probe::argument_is(argc, argv, "by", "configuration"));
  }
  if (probe::argument_is(argc, argv, "case", "library")) {
    return library(probe::argument(argc, argv, "library", ""));
  }
  return 2;
}
