// SPDX-License-Identifier: Apache-2.0
// Pairs of malloc and free in one process: how many a second, and how long single calls take. The
// allocators that come with CUDA; RMM's are in pairs_rmm.cu. Built with the shared and the static
// libcudart.
//   allocator=runtime   cudaMalloc and cudaFree: legacy, or cupool with the preload
//   allocator=driver    cuMemAlloc and cuMemFree: the same without libcudart
//   allocator=async     cudaMallocAsync on a stream of each thread, release threshold at most
//   allocator=cub       one cub::CachingDeviceAllocator, a stream of each thread
//   allocator=none      nothing: what the loop, the queue and the clock cost
//   mode=pairs          each thread keeps blocks=N live, frees the oldest and allocates the next
//   mode=producer       threads in twos: one allocates, the other frees, a queue of blocks=N
//   between mode=libcudart      one thread, slices of runtime and driver in turn: the difference is
//   libcudart
// Arguments: size=BYTES | sizes=mixed (256 B to 64 KiB), threads=N blocks=N limit_ms=N samples=N
// curve=1, lane=1 (work in the legacy stream first), streams=N kept busy with kernels of
// kernel_us=N, depth=N in flight on each
#include <cuda.h>
#include <cuda_runtime.h>

#include <cub/util_allocator.cuh>

#include "pairs_busy.cuh"
#include "pairs_work.h"

namespace {

using pairs::Options;

// Each thread says which device it means; the driver's functions need a current context.
struct OnDevice {
  static void enter_thread() { MUST(cudaSetDevice(0)); }
};

struct Runtime : OnDevice {
  Runtime(const Options&, int) {}
  void* allocate(size_t bytes) {
    void* pointer = nullptr;
    return cudaMalloc(&pointer, bytes) == cudaSuccess ? pointer : nullptr;
  }
  bool release(void* pointer, size_t) { return cudaFree(pointer) == cudaSuccess; }
};

struct Driver : OnDevice {
  Driver(const Options&, int) {}
  void* allocate(size_t bytes) {
    CUdeviceptr pointer = 0;
    if (cuMemAlloc(&pointer, bytes) != CUDA_SUCCESS) return nullptr;
    return reinterpret_cast<void*>(pointer);
  }
  bool release(void* pointer, size_t) {
    return cuMemFree(reinterpret_cast<CUdeviceptr>(pointer)) == CUDA_SUCCESS;
  }
};

// A thread's own stream, as programs use these allocators: a block that is freed on it can be
// handed out on it again at once.
struct OwnStream {
  OwnStream() { MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~OwnStream() { MUST(cudaStreamDestroy(stream)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cudaStream_t stream = nullptr;
};

struct Async : OnDevice {
  Async(const Options&, int) {
    cudaMemPool_t pool = nullptr;
    uint64_t everything = UINT64_MAX;
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything));
  }
  void* allocate(size_t bytes) {
    void* pointer = nullptr;
    const cudaError_t code = cudaMallocAsync(&pointer, bytes, own.stream);
    return code == cudaSuccess ? pointer : nullptr;
  }
  bool release(void* pointer, size_t) { return cudaFreeAsync(pointer, own.stream) == cudaSuccess; }
  OwnStream own;
};

struct Cub : OnDevice {
  Cub(const Options&, int) {}
  void* allocate(size_t bytes) {
    void* pointer = nullptr;
    const cudaError_t code = shared().DeviceAllocate(&pointer, bytes, own.stream);
    return code == cudaSuccess ? pointer : nullptr;
  }
  bool release(void* pointer, size_t) { return shared().DeviceFree(pointer) == cudaSuccess; }
  // Bins of powers of two from 256 B to 1 GiB, no limit: its defaults do not keep blocks from 2 MiB
  // up.
  static cub::CachingDeviceAllocator& shared() {
    static auto* allocator = new cub::CachingDeviceAllocator(2, 8, 30, SIZE_MAX, true);
    return *allocator;
  }
  OwnStream own;
};

// Addresses that nobody uses, each once.
struct None : OnDevice {
  None(const Options&, int thread) : next(static_cast<uintptr_t>(thread + 1) << 50) {}
  void* allocate(size_t bytes) {
    next += bytes;
    return reinterpret_cast<void*>(next - bytes);
  }
  bool release(void* pointer, size_t) { return pointer != nullptr; }
  uintptr_t next;
};

// Enough work in the legacy stream that cupool takes it for the program's main stream.
void open_lane() {
  constexpr int kCalls = 200;
  void* memory = nullptr;
  MUST(cudaMalloc(&memory, 65536));
  for (int i = 0; i < kCalls; ++i) MUST(cudaMemset(memory, 0, 65536));
  MUST(cudaDeviceSynchronize());
  MUST(cudaFree(memory));
}

template <class Calls>
int measure(const Options& options) {
  if (options.lane) open_lane();
  pairs::BusyStreams busy(options);
  pairs::Work<Calls> work(options);
  work.run();
  busy.stop();
  busy.print();
  work.print();
  return 0;
}

template <class Calls>
double slice_ns(const Options& options, double seconds) {
  Calls calls(options, 0);
  pairs::Tally tally;
  pairs::Block block;
  const pairs::Sizes sizes(options, 0);
  const double took = pairs::repeat(seconds, ~uint64_t{0}, [&](uint64_t i) {
    block = {pairs::take<false>(&calls, sizes[i], &tally), sizes[i]};
    pairs::give<false>(&calls, block, &tally);
  });
  if (tally.malloc_errors + tally.free_errors != 0) {
    std::fprintf(stderr, "%" PRIu64 " errors\n", tally.malloc_errors + tally.free_errors);
    std::_Exit(4);
  }
  return took * 1e9 / static_cast<double>(tally.mallocs);
}

// In one process and in turn: a clock or a cache that changes reaches both sides.
int measure_libcudart(const Options& options) {
  constexpr int kSlices = 31;
  const double seconds = static_cast<double>(options.limit_ms) * 1e-3 / (2 * kSlices);
  std::vector<double> runtime;
  std::vector<double> driver;
  std::vector<double> difference;
  for (int i = -1; i < kSlices; ++i) {
    const double first = slice_ns<Runtime>(options, seconds);
    const double second = slice_ns<Driver>(options, seconds);
    if (i < 0) continue;  // warm-up
    runtime.push_back(first);
    driver.push_back(second);
    difference.push_back(first - second);
  }
  std::sort(difference.begin(), difference.end());
  std::printf(
      "time runtime_ns=%.2f driver_ns=%.2f libcudart_ns=%.2f libcudart_q1_ns=%.2f "
      "libcudart_q3_ns=%.2f\n",
      gpu_test::median(runtime), gpu_test::median(driver), gpu_test::median(difference),
      difference[kSlices / 4], difference[kSlices * 3 / 4]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // As many streams side by side as are kept busy; the default is 8.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const Options options = pairs::parse(argc, argv);
  MUST(cudaSetDevice(0));
  MUST(cudaFree(nullptr));  // the context is made here, and is current in this thread
  if (options.mode == "libcudart") return measure_libcudart(options);
  if (options.mode == "pairs" || options.mode == "producer") {
    if (options.allocator == "runtime") return measure<Runtime>(options);
    if (options.allocator == "driver") return measure<Driver>(options);
    if (options.allocator == "async") return measure<Async>(options);
    if (options.allocator == "cub") return measure<Cub>(options);
    if (options.allocator == "none") return measure<None>(options);
  }
  std::fprintf(stderr, "no such allocator or mode: %s, %s\n", options.allocator.c_str(),
               options.mode.c_str());
  return 2;
}
