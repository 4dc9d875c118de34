// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory, by the driver interface alone. case=seen: what the program sees of live
// and of freed memory; case=pairs: allocations and frees in turn, of one size or of several, with
// threads; case=busy: a kernel that still uses the memory when it is freed and allocated again;
// case=reset: memory that goes with its context; case=capture: frees during one; case=idle: memory
// that lies idle for a while (beside=created, current or held: beside a second context without
// allocations); case=contexts: two of them; case=held: two, and the first one is busy
// until the host says so; case=crowded: an allocation that is refused once, beside idle memory and
// a thread that keeps the GPU busy; case=physical: cuMemCreate at a host location, beside idle
// memory; case=only: rounds= pairs, and no device memory at all.
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"
#include "sim_control.h"

extern "C" CUresult CUDAAPI cuMemAllocHost_v2(void** memory, size_t bytes);

namespace {

using probe::say;

struct Gpu {
  CUcontext context = nullptr;
  CUfunction stamp = nullptr;  // (u32* at, u64 words, u32 value)
  CUfunction spin = nullptr;
  CUstream stream = nullptr;

  enum class Uses { device_memory, host_memory };

  explicit Gpu(Uses uses = Uses::device_memory) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    load();
    if (uses == Uses::host_memory) return;
    CUdeviceptr block = 0;  // without it there is a report only if the cache has served
    MUST(cuMemAlloc(&block, 4096));
    MUST(cuMemFree(block));
  }
  void load() {
    CUmodule module = nullptr;
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuModuleGetFunction(&stamp, module, "stamp_u32"));
    MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  void write(void* at, std::uint64_t words, std::uint32_t value) const {
    void* arguments[] = {&at, &words, &value};
    MUST(cuLaunchKernel(stamp, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  }
  void work(std::uint64_t ns) const {
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  }
};

void* allocate(std::size_t bytes, unsigned flags = 0) {
  void* memory = nullptr;
  MUST(cuMemHostAlloc(&memory, bytes, flags));
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 4096 == 0);
  return memory;
}

CUdeviceptr at(const void* host) {
  return reinterpret_cast<CUdeviceptr>(host);
}

void describe(void* memory, std::size_t offset) {
  auto* const inside = static_cast<char*>(memory) + offset;
  unsigned flags = 99;
  CUdeviceptr device = 0;
  CUdeviceptr start = 0;
  std::size_t size = 0;
  unsigned type = 0;
  say("flags", cuMemHostGetFlags(&flags, memory));
  say(" are", static_cast<long>(flags));
  say("device pointer", cuMemHostGetDevicePointer(&device, inside, 0));
  say(" is it", device == at(inside));
  say("size", cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at(inside)));
  say(" is", static_cast<long>(size));
  say("start", cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at(inside)));
  say(" is it", start == at(memory));
  say("type", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(inside)));
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* values[] = {&size, &type};
  say("both", cuPointerGetAttributes(2, asked, values, at(inside)));
  say(" size", static_cast<long>(size));
  say(" type", static_cast<long>(type));
  say("range", cuMemGetAddressRange(&start, &size, at(inside)));
}

int seen() {
  const Gpu gpu;
  for (const std::size_t bytes : {100, 5000, 70000, 60000, 3 << 20}) {
    for (const unsigned flags :
         {0u, unsigned{CU_MEMHOSTALLOC_PORTABLE}, unsigned{CU_MEMHOSTALLOC_WRITECOMBINED}}) {
      void* const memory = allocate(bytes, flags);
      std::memset(memory, 7, bytes);
      describe(memory, 0);
      describe(memory, bytes - 1);
      say("the end", cuMemFreeHost(static_cast<char*>(memory) + 64));
      say("unregistered", cuMemHostUnregister(memory));
      MUST(cuMemFreeHost(memory));
      say("once more", cuMemFreeHost(memory));
      describe(memory, 0);
    }
    void* plain = nullptr;
    MUST(cuMemAllocHost_v2(&plain, bytes));
    describe(plain, 0);
    MUST(cuMemFreeHost(plain));
  }
  void* none = nullptr;
  say("nothing", cuMemHostAlloc(&none, 0, 0));
  say("nowhere", cuMemHostAlloc(nullptr, 64, 0));
  say("null", cuMemFreeHost(nullptr));
  static char foreign[8192];
  say("foreign", cuMemFreeHost(foreign));
  MUST(cuMemHostRegister(foreign, sizeof foreign, 0));
  say("registered", cuMemFreeHost(foreign));
  MUST(cuMemHostUnregister(foreign));
  return 0;
}

// One size in turn, then several that live together; each byte is its owner's.
void some_pairs(CUcontext context, int rounds, unsigned char own) {
  MUST(cuCtxSetCurrent(context));
  for (int i = 0; i < rounds; ++i) {
    for (const std::size_t bytes : {4096, 65536, 1 << 20}) {
      auto* const memory = static_cast<unsigned char*>(allocate(bytes));
      std::memset(memory, own, bytes);
      std::this_thread::yield();
      CHECK(probe::count_other_bytes(memory, bytes, own) == 0);
      MUST(cuMemFreeHost(memory));
    }
    std::vector<unsigned char*> all;
    for (std::size_t n = 1; n <= 8; ++n) {
      all.push_back(static_cast<unsigned char*>(allocate(n * 3000)));
      std::memset(all.back(), own + static_cast<int>(n), n * 3000);
    }
    for (std::size_t n = 1; n <= 8; ++n) {
      CHECK(probe::count_other_bytes(all[n - 1], n * 3000, own + static_cast<int>(n)) == 0);
      MUST(cuMemFreeHost(all[n - 1]));
    }
  }
}

int pairs(int threads, int rounds) {
  const Gpu gpu;
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back(some_pairs, gpu.context, rounds, static_cast<unsigned char>(16 * i));
  }
  some_pairs(gpu.context, rounds, 200);
  for (std::thread& other : others) other.join();
  return 0;
}

// The words that kernels write into memory which has another owner by then. `hidden`: the kernel
// gets the address in a way that no argument shows.
int busy(std::size_t bytes) {
  static const auto owner =
      probe::sim_control<void (*)(const void*, size_t, unsigned long long)>("cupoolSimOwner");
  static const auto touch =
      probe::sim_control<void (*)(const void*, size_t, int)>("cupoolSimHostAccess");
  const Gpu gpu;
  unsigned long long number = 0;
  for (int i = 0; i < 20; ++i) {
    auto* const memory = static_cast<std::uint32_t*>(allocate(bytes));
    owner(memory, bytes, ++number);
    touch(memory, bytes, 1);
    std::memset(memory, 0, bytes);
    gpu.work(1000);
    gpu.write(memory, 16, 0xdeadbeef);
    owner(memory, bytes, 0);
    MUST(cuMemFreeHost(memory));
    auto* const next = static_cast<std::uint32_t*>(allocate(bytes));
    owner(next, bytes, ++number);
    touch(next, bytes, 1);
    std::memset(next, 1, bytes);
    MUST(cuCtxSynchronize());
    CHECK(probe::count_other_bytes(reinterpret_cast<unsigned char*>(next), bytes, 1) == 0);
    owner(next, bytes, 0);
    MUST(cuMemFreeHost(next));
  }
  return 0;
}

int reset() {
  Gpu gpu;
  for (int i = 0; i < 3; ++i) {
    void* const kept = allocate(8192);
    void* const freed = allocate(65536);
    MUST(cuMemFreeHost(freed));
    MUST(cuDevicePrimaryCtxReset(0));
    MUST(cuDevicePrimaryCtxRetain(&gpu.context, 0));
    gpu.load();
    say("kept", cuMemFreeHost(kept));
    void* const next = allocate(65536);
    std::memset(next, 3, 65536);
    MUST(cuMemFreeHost(next));
  }
  return 0;
}

int capture() {
  const Gpu gpu;
  void* first = allocate(4096);
  void* second = allocate(4096);
  MUST(cuMemFreeHost(first));
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL}) {
    CUgraph graph = nullptr;
    void* memory = nullptr;
    MUST(cuStreamBeginCapture(gpu.stream, mode));
    gpu.work(10);
    say("allocation", cuMemHostAlloc(&memory, 4096, 0));
    say("free", cuMemFreeHost(second));
    const CUresult end = cuStreamEndCapture(gpu.stream, &graph);
    say("capture", end);
    if (memory != nullptr) MUST(cuMemFreeHost(memory));
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) second = allocate(4096);
  }
  MUST(cuMemFreeHost(second));
  return 0;
}

void leave_idle() {
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(allocate(1 << 20));
  for (void* memory : all) MUST(cuMemFreeHost(memory));
}

// A second context that the program has, beside the current one, in each way that there is.
void have_another(const std::string& way) {
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  MUST(cuCtxGetCurrent(&first));
  if (way == "created") MUST(cuCtxCreate(&second, nullptr, 0, 0));
  if (way == "current" || way == "held") MUST(cuDevicePrimaryCtxRetain(&second, 1));
  if (way == "current") MUST(cuCtxSetCurrent(second));
  MUST(cuCtxSetCurrent(first));
}

int idle(int milliseconds, const std::string& beside) {
  const Gpu gpu;
  leave_idle();
  have_another(beside);
  usleep(static_cast<useconds_t>(milliseconds) * 1000);
  void* const last = allocate(2 << 20);
  MUST(cuMemFreeHost(last));
  return 0;
}

int contexts() {
  const Gpu gpu;
  void* const early = allocate(4096);
  MUST(cuMemFreeHost(early));
  CUcontext second = nullptr;
  MUST(cuCtxCreate(&second, nullptr, 0, 0));
  void* const memory = allocate(4096);
  std::memset(memory, 1, 4096);
  MUST(cuMemFreeHost(memory));
  MUST(cuCtxSetCurrent(gpu.context));
  void* const other = allocate(4096);
  MUST(cuMemFreeHost(other));
  say("again", cuMemFreeHost(other));
  return 0;
}

// An allocation does not wait for the GPU, whatever becomes of what was freed before.
int held() {
  const Gpu gpu;
  void* const early = allocate(4096);
  MUST(cuMemFreeHost(early));
  MUST(cuCtxSynchronize());
  static std::atomic<bool> over{false};
  const auto wait = [](void*) {
    while (!over.load()) std::this_thread::yield();
  };
  MUST(cuLaunchHostFunc(gpu.stream, wait, nullptr));
  CUcontext second = nullptr;
  MUST(cuCtxCreate(&second, nullptr, 0, 0));
  void* const other = allocate(4096);
  std::memset(other, 1, 4096);
  MUST(cuCtxSetCurrent(gpu.context));
  void* const own = allocate(4096);
  over = true;
  MUST(cuCtxSynchronize());
  MUST(cuMemFreeHost(own));
  MUST(cuMemFreeHost(other));
  return 0;
}

// A kernel is launched before the one before it is over, so that the GPU always has work.
int crowded() {
  const Gpu gpu;
  leave_idle();
  std::atomic<bool> begun{false};
  std::atomic<bool> over{false};
  std::thread other([&] {
    MUST(cuCtxSetCurrent(gpu.context));
    CUevent events[2] = {};
    for (CUevent& event : events) MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int turn = 0; !over.load(); ++turn) {
      gpu.work(3'000'000);
      MUST(cuEventRecord(events[turn % 2], gpu.stream));
      MUST(cuEventSynchronize(events[(turn + 1) % 2]));
      begun = true;
    }
  });
  while (!begun.load()) std::this_thread::yield();
  void* memory = nullptr;
  const CUresult result = cuMemHostAlloc(&memory, 2 << 20, 0);
  say("allocation", result);
  over = true;
  other.join();
  if (result == CUDA_SUCCESS) MUST(cuMemFreeHost(memory));
  return 0;
}

int physical() {
  const Gpu gpu;
  leave_idle();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle handle = 0;
  say("physical memory", cuMemCreate(&handle, 2 << 20, &properties, 0));
  return 0;
}

int only(int rounds) {
  const Gpu gpu(Gpu::Uses::host_memory);
  for (int round = 0; round < rounds; ++round) MUST(cuMemFreeHost(allocate(4096)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto is = [&](const char* name) { return probe::argument_is(argc, argv, "case", name); };
  const auto number = [&](const char* name, long otherwise) {
    return static_cast<int>(probe::number(argc, argv, name, otherwise));
  };
  const auto run = [&] {
    if (is("seen")) return seen();
    if (is("pairs")) return pairs(number("threads", 1), number("rounds", 10));
    if (is("busy")) return busy(static_cast<std::size_t>(number("bytes", 4096)));
    if (is("reset")) return reset();
    if (is("capture")) return capture();
    if (is("contexts")) return contexts();
    if (is("held")) return held();
    if (is("crowded")) return crowded();
    if (is("physical")) return physical();
    if (is("only")) return only(number("rounds", 1));
    std::string beside = "none";
    for (const char* const way : {"created", "current", "held"}) {
      if (probe::argument_is(argc, argv, "beside", way)) beside = way;
    }
    return idle(number("ms", 100), beside);
  };
  say("done", run());
  return 0;
}
