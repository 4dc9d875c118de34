// SPDX-License-Identifier: Apache-2.0
// What a free says to the host, by the driver interface alone: case=interior, a device pointer
// inside page-locked memory that is freed again; case=managed, many managed blocks beside other
// frees; case=callback, allocations and frees in host functions; case=aimed, page-locked memory as
// the target of what takes device memory (stream=per_thread: by the twins for per-thread default
// streams); case=kept, page-locked memory that a refused call, or what was there before, leaves
// as it is; case=rescued, a launch whose first attempt is refused; case=library, zero-copy memory
// of a library (library=: its path).
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

namespace {

constexpr std::size_t kBytes = 4096;

struct Gpu {
  CUfunction spin = nullptr;
  CUfunction copy = nullptr;  // (u32* to, const u32* from, u64 words)
  CUstream stream = nullptr;

  Gpu() {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
    MUST(cuModuleGetFunction(&copy, module, "copy_u32"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  void work(std::uint64_t ns) const { work(ns, stream); }
  void work(std::uint64_t ns, CUstream on) const {
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, on, arguments, nullptr));
  }
};

// Whether a free returns while a kernel of another stream goes on.
bool free_waits(const Gpu& gpu) {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  gpu.work(20'000'000);
  MUST(cuMemFree(block));
  const bool waited = cuStreamQuery(gpu.stream) == CUDA_SUCCESS;
  MUST(cuCtxSynchronize());
  return waited;
}

void warm_up() {
  CUdeviceptr block = 0;
  for (int i = 0; i < 10; ++i) {
    MUST(cuMemAlloc(&block, kBytes));
    MUST(cuMemFree(block));
  }
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

// What each of them leaves in host memory, seen right after a free of something else.
class Aimed {
 public:
  explicit Aimed(bool per_thread) : per_thread_(per_thread) {
    MUST(cuMemAlloc(&source_, kBytes));
    MUST(cuMemsetD8(source_, 0x5a, kBytes));
    MUST(cuMemHostAlloc(&host_, kBytes, 0));
    MUST(cuCtxSynchronize());
    target_ = reinterpret_cast<CUdeviceptr>(host_);
  }

  // `call` gets the stream; a name of `symbol` with _ptsz gets 0, which means the thread's own.
  template <typename Function, typename Call>
  void see(const char* symbol, const Call& call) {
    const std::string name = std::string(symbol) + (per_thread_ ? "_ptsz" : "");
    void* const found = dlsym(RTLD_DEFAULT, name.c_str());
    CHECK(found != nullptr);
    std::memset(host_, 0, kBytes);
    CUdeviceptr block = 0;
    MUST(cuMemAlloc(&block, kBytes));
    const CUstream work = per_thread_ ? CU_STREAM_PER_THREAD : gpu_.stream;
    gpu_.work(20'000'000, work);
    const CUresult answer = call(reinterpret_cast<Function>(found), per_thread_ ? nullptr : work);
    MUST(cuMemFree(block));
    const bool there = *static_cast<volatile unsigned char*>(host_) == 0x5a;
    std::printf("%s=%d there=%d\n", name.c_str(), static_cast<int>(answer), there);
    MUST(cuCtxSynchronize());
  }
  int see_all();

 private:
  void see_launches();
  template <typename Value>
  void see_fill(const char* symbol, Value value) {
    see<CUresult (*)(CUdeviceptr, Value, std::size_t, CUstream)>(
        symbol, [&](auto fill, CUstream stream) {
          return fill(target_, value, kBytes / sizeof(Value), stream);
        });
  }
  template <typename Value>
  void see_fill_2d(const char* symbol, Value value) {
    see<CUresult (*)(CUdeviceptr, std::size_t, Value, std::size_t, std::size_t, CUstream)>(
        symbol, [&](auto fill, CUstream stream) {
          return fill(target_, 512, value, 256 / sizeof(Value), 4, stream);
        });
  }
  template <typename Value>
  void see_write(const char* symbol, Value value) {
    see<CUresult (*)(CUstream, CUdeviceptr, Value, unsigned)>(
        symbol, [&](auto write, CUstream stream) { return write(stream, target_, value, 0); });
  }
  template <typename Copy>
  Copy box() const {
    Copy copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = source_;
    copy.srcPitch = kBytes;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = target_;
    copy.dstPitch = kBytes;
    copy.WidthInBytes = kBytes;
    copy.Height = 1;
    return copy;
  }
  template <typename Copy>
  Copy deep_box() const {
    Copy copy = box<Copy>();
    copy.srcHeight = copy.dstHeight = copy.Depth = 1;
    return copy;
  }
  template <typename Copy>
  void see_box(const char* symbol, const Copy& copy) {
    see<CUresult (*)(const Copy*, CUstream)>(
        symbol, [&](auto make, CUstream stream) { return make(&copy, stream); });
  }

  const Gpu gpu_;
  const bool per_thread_;
  CUdeviceptr source_ = 0;
  CUdeviceptr target_ = 0;
  void* host_ = nullptr;
};

int Aimed::see_all() {
  see_fill<unsigned char>("cuMemsetD8Async", 0x5a);
  see_fill<unsigned short>("cuMemsetD16Async", 0x5a5a);
  see_fill<unsigned int>("cuMemsetD32Async", 0x5a5a5a5a);
  see_fill_2d<unsigned char>("cuMemsetD2D8Async", 0x5a);
  see_fill_2d<unsigned short>("cuMemsetD2D16Async", 0x5a5a);
  see_fill_2d<unsigned int>("cuMemsetD2D32Async", 0x5a5a5a5a);
  see<CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>(
      "cuMemcpyDtoDAsync_v2",
      [&](auto copy, CUstream stream) { return copy(target_, source_, kBytes, stream); });
  CUcontext context = nullptr;
  MUST(cuCtxGetCurrent(&context));
  see<CUresult (*)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream)>(
      "cuMemcpyPeerAsync", [&](auto copy, CUstream stream) {
        return copy(target_, context, source_, context, kBytes, stream);
      });
  see_box("cuMemcpy2DAsync_v2", box<CUDA_MEMCPY2D>());
  see_box("cuMemcpy3DAsync_v2", deep_box<CUDA_MEMCPY3D>());
  CUDA_MEMCPY3D_PEER peer = deep_box<CUDA_MEMCPY3D_PEER>();
  peer.srcContext = peer.dstContext = context;
  see_box("cuMemcpy3DPeerAsync", peer);
  peer.dstMemoryType = CU_MEMORYTYPE_HOST;
  peer.dstHost = host_;
  see_box("cuMemcpy3DPeerAsync", peer);
  see_write<cuuint32_t>("cuStreamWriteValue32", 0x5a5a5a5a);
  see_write<cuuint32_t>("cuStreamWriteValue32_v2", 0x5a5a5a5a);
  see_write<cuuint64_t>("cuStreamWriteValue64", 0x5a5a5a5a);
  see_write<cuuint64_t>("cuStreamWriteValue64_v2", 0x5a5a5a5a);
  CUstreamBatchMemOpParams write{};
  write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = target_;
  write.writeValue.value = 0x5a5a5a5a;
  for (const char* symbol : {"cuStreamBatchMemOp", "cuStreamBatchMemOp_v2"}) {
    see<CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned)>(
        symbol, [&](auto batch, CUstream stream) { return batch(stream, 1, &write, 0); });
  }
  see_launches();
  return 0;
}

// Kernels that get the host address itself, one by one or in a buffer.
void Aimed::see_launches() {
  struct {
    CUdeviceptr to;
    CUdeviceptr from;
    std::uint64_t words;
  } packed = {target_, source_, 64};
  std::size_t bytes = sizeof packed;
  void* values[] = {&packed.to, &packed.from, &packed.words};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  using Launch = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void**, void**);
  see<Launch>("cuLaunchKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, values, nullptr);
  });
  see<Launch>("cuLaunchKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra);
  });
  void* size_first[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER,
                        &packed, CU_LAUNCH_PARAM_END};
  see<Launch>("cuLaunchKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, size_first);
  });
  using Cooperative = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void**);
  see<Cooperative>("cuLaunchCooperativeKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, values);
  });
  CUlaunchConfig configuration{};
  configuration.gridDimX = configuration.gridDimY = configuration.gridDimZ = 1;
  configuration.blockDimX = 32;
  configuration.blockDimY = configuration.blockDimZ = 1;
  see<CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**)>(
      "cuLaunchKernelEx", [&](auto launch, CUstream stream) {
        configuration.hStream = stream;
        return launch(&configuration, gpu_.copy, values, nullptr);
      });
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
  if (probe::argument_is(argc, argv, "case", "managed")) return managed(2000);
  if (probe::argument_is(argc, argv, "case", "beside")) return beside();
  if (probe::argument_is(argc, argv, "case", "contexts")) return contexts();
  if (probe::argument_is(argc, argv, "case", "callback")) return callback();
  if (probe::argument_is(argc, argv, "case", "aimed")) {
    return Aimed(probe::argument_is(argc, argv, "stream", "per_thread")).see_all();
  }
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
