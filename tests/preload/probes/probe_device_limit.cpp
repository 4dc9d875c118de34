// SPDX-License-Identifier: Apache-2.0
// At the device's limit (contract 4). walk: ask for free memory, allocate it, on failure 1 MiB less
// (leave= MiB are left for code, live=1: small and large blocks are live before); then a module is
// loaded and launched. threads: many sizes from several threads until nothing is left. capture: out
// of memory while a capture runs. wait: a free waits in a capture that began on a full device.
// fill: blocks of 8 MiB until out of memory. physical: memory of another allocator, which is there
// while other threads allocate and free.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "owner.h"
#include "probe.h"
#include "probe_memory.h"

using probe::free_memory;

namespace {

constexpr size_t kMiB = 1 << 20;

void print_code(const char* what, int code) {
  std::printf("%s: %d, last error %d\n", what, code, static_cast<int>(cudaGetLastError()));
}

// Loads code and runs it on `words`, whose memory is the program's already.
void load_and_launch(CUdeviceptr words) {
  const uint64_t count = 1024;
  const uint32_t value = 0x5A5A5A5A;
  CUmodule module = nullptr;
  const int loaded = cuModuleLoadData(&module, "the simulated device knows kernels by name");
  std::printf("module: %d\n", loaded);
  if (loaded != 0) return;
  CUfunction stamp = nullptr;
  MUST(cuModuleGetFunction(&stamp, module, "stamp_u32"));
  void* arguments[] = {&words, const_cast<uint64_t*>(&count), const_cast<uint32_t*>(&value)};
  MUST(cuLaunchKernel(stamp, 4, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
  std::vector<uint32_t> host(count);
  MUST(cudaMemcpy(host.data(), reinterpret_cast<void*>(words), count * 4, cudaMemcpyDeviceToHost));
  size_t right = 0;
  for (const uint32_t word : host) right += word == value;
  std::printf("kernel: %zu of %zu words\n", right, host.size());
  MUST(cuModuleUnload(module));
}

void walk(size_t leave, bool live) {
  std::vector<void*> blocks;
  if (live) {
    for (const size_t size : {size_t{512}, size_t{100} * 1000, 3 * kMiB, size_t{700}, 20 * kMiB}) {
      void* p = nullptr;
      MUST(cudaMalloc(&p, size));
      blocks.push_back(p);
    }
    MUST(cudaFree(blocks[2]));
    blocks.erase(blocks.begin() + 2);
  }
  size_t size = (free_memory() / kMiB - leave) * kMiB;
  int tries = 1;
  void* all = nullptr;
  for (; cudaMalloc(&all, size) != cudaSuccess; ++tries) {
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(size > kMiB);
    size -= kMiB;
  }
  std::printf("total_mib=%zu\n", size / kMiB);
  if (!live) std::printf("tries %d\n", tries);
  load_and_launch(reinterpret_cast<CUdeviceptr>(all));
  MUST(cudaFree(all));
  for (void* p : blocks) MUST(cudaFree(p));
  // All of it comes back, and can be had once more.
  size = free_memory() / kMiB * kMiB;
  MUST(cudaMalloc(&all, size));
  MUST(cudaFree(all));
}

// What is live in all threads, and the most of it since the call that a thread is in began. A
// refusal is judged by that: between the refusal and the thread's next step others may give much
// back.
constexpr int kThreads = 4;
std::atomic<size_t> live_bytes{0};
std::atomic<size_t> most_since_call[kThreads];
std::atomic<size_t> least_at_refusal{SIZE_MAX};
std::atomic<int> refusals{0};

void raise(std::atomic<size_t>& most, size_t value) {
  size_t now = most.load();
  while (now < value && !most.compare_exchange_weak(now, value)) {
  }
}

void begin_call(int thread) {
  most_since_call[thread] = 0;
  raise(most_since_call[thread], live_bytes);
}

void add_live(size_t bytes) {
  const size_t live = live_bytes += bytes;
  for (std::atomic<size_t>& most : most_since_call) raise(most, live);
}

void note_refusal(int thread, size_t wanted) {
  ++refusals;
  const size_t live = most_since_call[thread].load() + wanted;
  size_t least = least_at_refusal.load();
  while (live < least && !least_at_refusal.compare_exchange_weak(least, live)) {
  }
}

struct Piece {
  void* address;
  size_t bytes;
};

void allocate_much(int thread) {
  unsigned seed = 77 + static_cast<unsigned>(thread);
  MUST(cudaSetDevice(0));
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<Piece> pieces;
  const auto drop = [&](size_t count) {
    while (pieces.size() > count) {
      probe::disown(pieces.back().address, pieces.back().bytes);
      live_bytes -= pieces.back().bytes;
      MUST(cudaFree(pieces.back().address));
      pieces.pop_back();
    }
  };
  for (int i = 0; i < 400; ++i) {
    seed = seed * 1664525 + 1013904223;
    const size_t bytes = (seed >> 16) % 8 == 0 ? size_t{(seed >> 8) % (24u << 20)} + 1
                                               : size_t{1} << ((seed >> 20) % 23);
    void* p = nullptr;
    begin_call(thread);
    const cudaError_t code = cudaMalloc(&p, bytes);
    if (code != cudaSuccess) {
      CHECK(code == cudaErrorMemoryAllocation);
      CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
      note_refusal(thread, bytes);
      drop(pieces.size() / 2);
      continue;
    }
    add_live(bytes);
    probe::own(p, bytes);
    pieces.push_back({p, bytes});
    MUST(cudaMemsetAsync(p, static_cast<int>(seed & 0xFF), bytes, stream));
  }
  drop(0);
  MUST(cudaStreamDestroy(stream));
}

void threads() {
  const size_t before = free_memory();
  std::vector<std::thread> all;
  for (int i = 0; i < kThreads; ++i) all.emplace_back(allocate_much, i);
  for (std::thread& thread : all) thread.join();
  CHECK(refusals > 0);
  std::printf("total_mib=%zu\n", least_at_refusal.load() / kMiB);
  MUST(cudaDeviceSynchronize());
  CHECK(free_memory() == before);
  void* p = nullptr;
  MUST(cudaMalloc(&p, before));
  MUST(cudaFree(p));
}

// At most 24 MiB a thread is the program's at a time: a quarter of 128 MiB is left for each.
void allocate_and_free(unsigned seed, const std::function<void()>& each_time) {
  MUST(cudaSetDevice(0));
  for (int i = 0; i < 2000; ++i) {
    seed = seed * 1664525 + 1013904223;
    const size_t bytes = 2 * kMiB * (1 + (seed >> 16) % 12);
    void* p = nullptr;
    MUST(cudaMalloc(&p, bytes));
    MUST(cudaMemsetAsync(p, 1, 4096, cudaStreamPerThread));
    MUST(cudaFree(p));
    each_time();
  }
}

void physical() {
  int refused = 0;
  const auto create = [&] {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    if (cuMemCreate(&handle, 24 * kMiB, &properties, 0) != CUDA_SUCCESS) {
      ++refused;
    } else {
      MUST(cuMemRelease(handle));
    }
  };
  std::vector<std::thread> all;
  for (unsigned i = 0; i < 3; ++i) {
    all.emplace_back([i] { allocate_and_free(77 + i, [] {}); });
  }
  allocate_and_free(80, create);
  for (std::thread& thread : all) thread.join();
  std::printf("refused: %d\n", refused);
}

std::vector<void*> fill(size_t block) {
  std::vector<void*> blocks;
  void* p = nullptr;
  while (cudaMalloc(&p, block) == cudaSuccess) blocks.push_back(p);
  print_code("out of memory", static_cast<int>(cudaPeekAtLastError()));
  return blocks;
}

// In relaxed mode the driver allows allocation and free inside a capture.
void capture() {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void* word = nullptr;
  MUST(cudaMalloc(&word, 4096));
  std::vector<void*> blocks = fill(16 * kMiB);
  for (void* p : blocks) MUST(cudaMemsetAsync(p, 3, 4096, nullptr));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  MUST(cudaMemsetAsync(word, 0x42, 4096, stream));
  void* p = nullptr;
  print_code("malloc with nothing idle", cudaMalloc(&p, 16 * kMiB));
  for (int i = 0; i < 8; ++i) {
    MUST(cudaFree(blocks.back()));
    blocks.pop_back();
  }
  print_code("malloc after frees", cudaMalloc(&p, 50 * kMiB));
  cudaGraph_t graph = nullptr;
  print_code("end", cudaStreamEndCapture(stream, &graph));
  CHECK(graph != nullptr);
  cudaGraphExec_t executable = nullptr;
  MUST(cudaGraphInstantiate(&executable, graph, 0));
  MUST(cudaGraphLaunch(executable, stream));
  MUST(cudaStreamSynchronize(stream));
  std::vector<unsigned char> host(4096);
  MUST(cudaMemcpy(host.data(), word, 4096, cudaMemcpyDeviceToHost));
  std::printf("wrong bytes %d\n",
              static_cast<int>(probe::count_other_bytes(host.data(), 4096, 0x42)));
  MUST(cudaFree(p));
  for (void* block : blocks) MUST(cudaFree(block));
}

// The free comes after the copy, as it does in the driver, though nothing is left of the device.
void wait() {
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) {
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  unsigned char* host = nullptr;
  void* gone = nullptr;
  MUST(cudaHostAlloc(&gone, 4096, 0));
  MUST(cudaHostAlloc(reinterpret_cast<void**>(&host), 4096, 0));
  std::memset(host, 0, 4096);
  std::vector<void*> blocks;
  cudaError_t refusal = cudaSuccess;
  for (const size_t size : {16 * kMiB, kMiB, size_t{16} << 10, size_t{512}}) {
    void* p = nullptr;
    while ((refusal = cudaMalloc(&p, size)) == cudaSuccess) blocks.push_back(p);
  }
  print_code("full", static_cast<int>(cudaPeekAtLastError()));
  if (blocks.empty()) MUST(refusal);
  MUST(cudaFreeHost(gone));
  MUST(cudaMemsetAsync(blocks[0], 0x42, 4096, streams[0]));
  MUST(cudaMemcpyAsync(host, blocks[0], 4096, cudaMemcpyDeviceToHost, streams[0]));
  MUST(cudaStreamBeginCapture(streams[1], cudaStreamCaptureModeRelaxed));
  // What the library may have taken at the same address is not the program's.
  print_code("free of host memory again", cudaFreeHost(gone));
  MUST(cudaFree(blocks[0]));
  std::printf("wrong bytes after the free %d\n",
              static_cast<int>(probe::count_other_bytes(host, 4096, 0x42)));
  cudaGraph_t graph = nullptr;
  const int ended = cudaStreamEndCapture(streams[1], &graph);
  print_code("end", ended);
  CHECK((graph != nullptr) == (ended == cudaSuccess));
  for (size_t i = 1; i < blocks.size(); ++i) MUST(cudaFree(blocks[i]));
  MUST(cudaFreeHost(host));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "walk");
  if (mode == "walk") {
    walk(static_cast<size_t>(probe::number(argc, argv, "leave", 0)),
         probe::argument_is(argc, argv, "live", "1"));
  } else if (mode == "threads") {
    threads();
  } else if (mode == "physical") {
    physical();
  } else if (mode == "capture") {
    capture();
  } else if (mode == "wait") {
    wait();
  } else {
    const std::vector<void*> blocks = fill(8 * kMiB);
    std::printf("total_mib=%zu\n", blocks.size() * 8);
    for (void* p : blocks) MUST(cudaFree(p));
  }
  return 0;
}
