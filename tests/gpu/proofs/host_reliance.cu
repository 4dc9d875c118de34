// SPDX-License-Identifier: Apache-2.0
// Programs that lean on the wait in cudaFree: they touch host memory right after it, although a
// copy, a kernel, a callback or a graph that uses that memory is still pending. Legacy CUDA makes
// them right; so must cupool but for CUPOOL_FREE_MODE=ordered, where the differences show that the
// test can see. Arguments: copies=N others=N spin_us=N; only=NAME, of memory that counts for good:
// mapped_host, host_pool, managed_pool. Lines: "case NAME rounds=N wrong=N".
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

constexpr uint64_t kWords = 16 << 10;  // 64 KiB
constexpr size_t kBytes = kWords * sizeof(uint32_t);
constexpr size_t kRow = 4096;  // bytes, for the copies of 2 and 3 dimensions
constexpr uint32_t kStale = 0xBAD0BAD0u;

uint64_t spin_nanoseconds = 30000;

uint32_t* device_words() {
  void* words = nullptr;
  MUST(cudaMalloc(&words, kBytes));
  return static_cast<uint32_t*>(words);
}

uint32_t* pinned_words() {
  void* words = nullptr;
  MUST(cudaHostAlloc(&words, kBytes, cudaHostAllocDefault));
  return static_cast<uint32_t*>(words);
}

bool all_are(const volatile uint32_t* words, uint32_t value) {
  for (uint64_t i = 0; i < kWords; ++i) {
    if (words[i] != value) return false;
  }
  return true;
}

// The block that the program frees. It has nothing to do with the host memory: legacy cudaFree
// waits for everything, not for the block's own work alone.
class Unrelated {
 public:
  Unrelated(int round, cudaStream_t stream) {
    const uint64_t words = round % 2 == 0 ? 1024 : 1 << 19;
    MUST(cudaMalloc(&words_, words * sizeof(uint32_t)));
    stamp_u32<<<16, 256, 0, stream>>>(static_cast<uint32_t*>(words_), words, 7);
    MUST(cudaGetLastError());
  }
  void release() { MUST(cudaFree(words_)); }

 private:
  void* words_ = nullptr;
};

// Every kind of stream in turn; all entry points have a twin for the per-thread default stream.
class Streams {
 public:
  Streams() {
    MUST(cudaStreamCreateWithFlags(&streams_[0], cudaStreamNonBlocking));
    MUST(cudaStreamCreate(&streams_[1]));
    streams_[2] = cudaStreamPerThread;
    streams_[3] = cudaStreamLegacy;
  }
  ~Streams() {
    cudaStreamDestroy(streams_[0]);
    cudaStreamDestroy(streams_[1]);
  }
  cudaStream_t of(int round) const { return streams_[round % 4]; }
  cudaStream_t non_blocking() const { return streams_[0]; }

 private:
  cudaStream_t streams_[4] = {};
};

// The ways to copy asynchronously, in turn. `way` changes slower than the stream.
void copy(void* to, const void* from, cudaMemcpyKind kind, int way, cudaStream_t stream) {
  switch (way % 4) {
    case 0:
      MUST(cudaMemcpyAsync(to, from, kBytes, kind, stream));
      return;
    case 1:
      MUST(cudaMemcpy2DAsync(to, kRow, from, kRow, kRow, kBytes / kRow, kind, stream));
      return;
    case 2: {
      cudaMemcpy3DParms parameters{};
      parameters.srcPtr = make_cudaPitchedPtr(const_cast<void*>(from), kRow, kRow, 4);
      parameters.dstPtr = make_cudaPitchedPtr(to, kRow, kRow, 4);
      parameters.extent = make_cudaExtent(kRow, 4, kBytes / kRow / 4);
      parameters.kind = kind;
      MUST(cudaMemcpy3DAsync(&parameters, stream));
      return;
    }
    default:
#if CUDART_VERSION >= 13000
      // Batches refuse the legacy stream.
      if (stream != cudaStreamLegacy) {
        cudaMemcpyAttributes attributes{};
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        size_t first = 0;
        const size_t size = kBytes;
        MUST(cudaMemcpyBatchAsync(&to, &from, &size, 1, &attributes, &first, 1, stream));
        return;
      }
#endif
      MUST(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream));
  }
}

void spin(cudaStream_t stream) {
  spin_ns<<<1, 1, 0, stream>>>(spin_nanoseconds);
  MUST(cudaGetLastError());
}

void print_case(const char* name, int rounds, uint64_t wrong) {
  std::printf("case %s rounds=%d wrong=%" PRIu64 "\n", name, rounds, wrong);
  std::fflush(stdout);
}

// The host refills a pinned buffer whose copy to the device is pending.
void refilled_source(int rounds) {
  const Streams streams;
  uint32_t* source = pinned_words();
  uint32_t* copied = device_words();
  void* counters = nullptr;
  MUST(cudaMalloc(&counters, rounds * sizeof(uint64_t)));
  MUST(cudaMemset(counters, 0, rounds * sizeof(uint64_t)));
  for (int i = 0; i < rounds; ++i) {
    const cudaStream_t stream = streams.of(i);
    const uint32_t value = 0x10000000u + static_cast<uint32_t>(i);
    std::fill(source, source + kWords, value);
    MUST(cudaDeviceSynchronize());
    Unrelated block(i, stream);
    spin(stream);
    copy(copied, source, cudaMemcpyHostToDevice, i / 4, stream);
    block.release();
    std::fill(source, source + kWords, kStale);
    check_u32<<<64, 256, 0, stream>>>(copied, kWords, value, static_cast<uint64_t*>(counters) + i);
    MUST(cudaStreamSynchronize(stream));
  }
  std::vector<uint64_t> wrong(rounds);
  MUST(cudaMemcpy(wrong.data(), counters, rounds * sizeof(uint64_t), cudaMemcpyDeviceToHost));
  print_case("refilled_source", rounds,
             static_cast<uint64_t>(std::count_if(wrong.begin(), wrong.end(),
                                                 [](uint64_t words) { return words != 0; })));
  MUST(cudaFree(counters));
  MUST(cudaFree(copied));
  MUST(cudaFreeHost(source));
}

// What the other cases share: `submit` queues, behind a spin kernel, work that makes `result` hold
// the round's value; the host reads it right after the free.
struct Reading {
  const char* name;
  int rounds;
  volatile uint32_t* result;
  std::function<void(int round, uint32_t value, cudaStream_t stream)> submit;
  bool own_spin = false;   // a graph holds its spin itself
  bool one_value = false;  // a graph always gives the same
  uint64_t words = kWords;
};

void read_after_free(const Reading& reading) {
  const Streams streams;
  uint64_t wrong = 0;
  for (int i = 0; i < reading.rounds; ++i) {
    const cudaStream_t stream = streams.of(i);
    const uint32_t value = reading.one_value ? 0x2468ACEu : 0x20000000u + static_cast<uint32_t>(i);
    for (uint64_t j = 0; j < reading.words; ++j) reading.result[j] = kStale;
    Unrelated block(i, stream);
    if (!reading.own_spin) spin(stream);
    reading.submit(i, value, stream);
    block.release();
    const bool right =
        reading.words == kWords ? all_are(reading.result, value) : reading.result[0] == value;
    if (!right) ++wrong;
    // The next round starts from rest: a late write of this one must not count there.
    MUST(cudaDeviceSynchronize());
  }
  print_case(reading.name, reading.rounds, wrong);
}

void read_result(int rounds) {
  uint32_t* result = pinned_words();
  uint32_t* source = device_words();
  read_after_free({"read_result", rounds, result, [=](int i, uint32_t value, cudaStream_t stream) {
                     stamp_u32<<<16, 256, 0, stream>>>(source, kWords, value);
                     copy(result, source, cudaMemcpyDeviceToHost, i / 4, stream);
                   }});
  MUST(cudaFree(source));
  MUST(cudaFreeHost(result));
}

// The driver's own function, as a program gets it.
template <typename Function>
Function driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  MUST(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
  return reinterpret_cast<Function>(function);
}

// Pinned memory as what the functions take for device memory: the target of copies between device
// pointers, of fills and of stream memory operations.
void aimed_copy(int rounds) {
  uint32_t* result = pinned_words();
  uint32_t* source = device_words();
  const auto submit = [=](int i, uint32_t value, cudaStream_t stream) {
    stamp_u32<<<16, 256, 0, stream>>>(source, kWords, value);
    switch (i / 4 % 3) {
      case 0:
        MUST(cudaMemcpyAsync(result, source, kBytes, cudaMemcpyDeviceToDevice, stream));
        return;
      case 1:
        MUST(cudaMemcpyPeerAsync(result, 0, source, 0, kBytes, stream));
        return;
      default: {
        cudaMemcpy3DPeerParms parameters{};
        parameters.srcPtr = make_cudaPitchedPtr(source, kRow, kRow, 4);
        parameters.dstPtr = make_cudaPitchedPtr(result, kRow, kRow, 4);
        parameters.extent = make_cudaExtent(kRow, 4, kBytes / kRow / 4);
        MUST(cudaMemcpy3DPeerAsync(&parameters, stream));
      }
    }
  };
  read_after_free({"aimed_copy", rounds, result, submit});
  MUST(cudaFree(source));
  MUST(cudaFreeHost(result));
}

void aimed_fill(int rounds) {
  uint32_t* result = pinned_words();
  const auto fill = driver_function<decltype(&cuMemsetD32Async)>("cuMemsetD32Async", 3020);
  read_after_free({"aimed_fill", rounds, result, [=](int, uint32_t value, cudaStream_t stream) {
                     MUST(fill(reinterpret_cast<CUdeviceptr>(result), value, kWords, stream));
                   }});
  MUST(cudaFreeHost(result));
}

void stream_write(int rounds) {
  uint32_t* result = pinned_words();
  const auto write =
      driver_function<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32", 11070);
  Reading reading{"stream_write", rounds, result, [=](int, uint32_t value, cudaStream_t stream) {
                    MUST(write(stream, reinterpret_cast<CUdeviceptr>(result), value, 0));
                  }};
  reading.words = 1;
  read_after_free(reading);
  MUST(cudaFreeHost(result));
}

void callback(int rounds) {
  struct Call {
    volatile uint32_t* flag;
    uint32_t value;
  };
  static uint32_t flag = 0;
  static Call call;
  Reading reading{"host_function", rounds, &flag, [](int, uint32_t value, cudaStream_t stream) {
                    call = Call{&flag, value};
                    MUST(cudaLaunchHostFunc(
                        stream,
                        [](void* data) {
                          const Call* made = static_cast<const Call*>(data);
                          *made->flag = made->value;
                        },
                        &call));
                  }};
  reading.words = 1;
  read_after_free(reading);
}

void graph(int rounds) {
  const Streams streams;
  uint32_t* result = pinned_words();
  uint32_t* source = device_words();
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t executable = nullptr;
  const cudaStream_t stream = streams.non_blocking();
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  spin(stream);
  stamp_u32<<<16, 256, 0, stream>>>(source, kWords, 0x2468ACEu);
  MUST(cudaMemcpyAsync(result, source, kBytes, cudaMemcpyDeviceToHost, stream));
  MUST(cudaStreamEndCapture(stream, &recorded));
  MUST(cudaGraphInstantiate(&executable, recorded, 0));
  Reading reading{"graph_copy", rounds, result, [=](int, uint32_t, cudaStream_t launched_on) {
                    MUST(cudaGraphLaunch(executable, launched_on));
                  }};
  reading.own_spin = true;
  reading.one_value = true;
  read_after_free(reading);
  MUST(cudaGraphExecDestroy(executable));
  MUST(cudaGraphDestroy(recorded));
  MUST(cudaFree(source));
  MUST(cudaFreeHost(result));
}

void kernel_writes(const char* name, int rounds, uint32_t* seen_by_host, uint32_t* seen_by_device) {
  read_after_free({name, rounds, seen_by_host, [=](int, uint32_t value, cudaStream_t stream) {
                     stamp_u32<<<16, 256, 0, stream>>>(seen_by_device, kWords, value);
                   }});
}

void zero_copy(int rounds) {
  void* host = nullptr;
  void* device = nullptr;
  MUST(cudaHostAlloc(&host, kBytes, cudaHostAllocMapped));
  MUST(cudaHostGetDevicePointer(&device, host, 0));
  kernel_writes("zero_copy", rounds, static_cast<uint32_t*>(host), static_cast<uint32_t*>(device));
  MUST(cudaFreeHost(host));
}

// The same without asking for a device pointer: with unified addressing the host's pointer works in
// kernels, and nothing tells this pinned memory from any other.
void zero_copy_unasked(int rounds) {
  uint32_t* words = pinned_words();
  kernel_writes("zero_copy_unasked", rounds, words, words);
  MUST(cudaFreeHost(words));
}

void managed(int rounds) {
  int concurrent = 0;
  MUST(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  std::printf("info concurrent managed access: %d\n", concurrent);
  // Without it, a read that does not wait is a fault, not a wrong result.
  std::fflush(stdout);
  void* words = nullptr;
  MUST(cudaMallocManaged(&words, kBytes));
  kernel_writes("managed", rounds, static_cast<uint32_t*>(words), static_cast<uint32_t*>(words));
  MUST(cudaFree(words));
}

// Host memory of cuMemCreate, mapped for device and host.
void mapped_host(int rounds) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  size_t granule = 0;
  MUST(driver_function<decltype(&cuMemGetAllocationGranularity)>(
      "cuMemGetAllocationGranularity", 10020)(&granule, &properties,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const size_t bytes = (kBytes + granule - 1) / granule * granule;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  MUST(driver_function<decltype(&cuMemCreate)>("cuMemCreate", 10020)(&handle, bytes, &properties,
                                                                     0));
  MUST(driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve", 10020)(
      &address, bytes, 0, 0, 0));
  MUST(driver_function<decltype(&cuMemMap)>("cuMemMap", 10020)(address, bytes, 0, handle, 0));
  CUmemAccessDesc access[2] = {};
  access[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access[1].location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  access[0].flags = access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess", 10020)(address, bytes, access,
                                                                           2));
  auto* const words = reinterpret_cast<uint32_t*>(address);
  kernel_writes("mapped_host", rounds, words, words);
}

// Memory of a pool of the program's own, on the host or managed.
void pool_memory(const char* name, int rounds, cudaMemAllocationType type,
                 cudaMemLocationType location) {
  cudaMemPoolProps properties = {};
  properties.allocType = type;
  properties.location.type = location;
  cudaMemPool_t pool = nullptr;
  void* memory = nullptr;
  MUST(cudaMemPoolCreate(&pool, &properties));
  if (type == cudaMemAllocationTypePinned) {
    cudaMemAccessDesc access = {};
    access.location.type = cudaMemLocationTypeDevice;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    MUST(cudaMemPoolSetAccess(pool, &access, 1));
  }
  MUST(cudaMallocFromPoolAsync(&memory, kBytes, pool, nullptr));
  MUST(cudaStreamSynchronize(nullptr));
  auto* const words = static_cast<uint32_t*>(memory);
  kernel_writes(name, rounds, words, words);
}

// False: there is no such case.
bool run_only(const std::string& name, int rounds) {
  if (name == "mapped_host") {
    mapped_host(rounds);
  } else if (name == "host_pool") {
    pool_memory("host_pool", rounds, cudaMemAllocationTypePinned, cudaMemLocationTypeHostNuma);
#if CUDART_VERSION >= 13000
  } else if (name == "managed_pool") {
    pool_memory("managed_pool", rounds, cudaMemAllocationTypeManaged, cudaMemLocationTypeDevice);
#endif
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int copies = static_cast<int>(gpu_test::number(argc, argv, "copies", 10000));
  const int others = static_cast<int>(gpu_test::number(argc, argv, "others", 500));
  spin_nanoseconds = static_cast<uint64_t>(gpu_test::number(argc, argv, "spin_us", 30)) * 1000;
  // Loads the kernels, so that the first round is like the others.
  uint32_t* words = device_words();
  stamp_u32<<<1, 32>>>(words, 1, 1);
  check_u32<<<1, 32>>>(words, 1, 1, reinterpret_cast<uint64_t*>(words) + 1);
  spin_ns<<<1, 1>>>(1);
  MUST(cudaDeviceSynchronize());
  MUST(cudaFree(words));
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "only=", 5) == 0) only = argv[i] + 5;
  }
  const auto begin = gpu_test::Clock::now();
  if (!only.empty()) {
    if (!run_only(only, others)) return 2;
    std::printf("result done\n");
    return 0;
  }
  refilled_source(copies);
  read_result(copies);
  aimed_copy(others);
  aimed_fill(others);
  stream_write(others);
  callback(others);
  graph(others);
  zero_copy_unasked(others);
  // Last: while memory of these kinds exists, every free may wait.
  zero_copy(others);
  managed(others);
  std::printf("result done\n");
  std::printf("time ms=%.1f\n", gpu_test::seconds_since(begin) * 1e3);
  return 0;
}
