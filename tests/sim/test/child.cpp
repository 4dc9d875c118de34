// SPDX-License-Identifier: Apache-2.0
// Scenes that need a process of their own; process_test.cpp plays them and reads what they print.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

CUcontext context;
CUdeviceptr memory;
CUmemoryPool pool;

int start() {
  const int result = cuInit(0);
  if (result != CUDA_SUCCESS) return result;
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  return result;
}

int alloc() {
  CUdeviceptr p = 0;
  return cuMemAlloc(&p, 64);
}

int fork_scene() {
  start();
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const int init = cuInit(0);
    const int allocated = alloc();
    const int freed = cuMemFree(0);
    const int waited = cuCtxSynchronize();
    std::printf("child: init %d alloc %d free0 %d sync %d count %d\n", init, allocated, freed,
                waited, cuDeviceGetCount(&count));
    std::fflush(stdout);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  std::printf("parent: alloc %d\n", alloc());
  return 0;
}

// Children are forked while other threads hold the driver's lock all the time.
int fork_busy_scene() {
  start();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      cuCtxSetCurrent(context);
      while (!stop) {
        CUdeviceptr p = 0;
        cuMemAlloc(&p, 64);
        cuMemFree(p);
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);
      _exit(alloc() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) std::printf("child failed: %d\n", status);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("children done\n");
  return 0;
}

int fork_first_scene() {
  int version = 0;
  cuDriverGetVersion(&version);
  const pid_t child = fork();
  if (child == 0) {
    const int init = start();
    std::printf("child: init %d alloc %d\n", init, alloc());
    std::fflush(stdout);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  return 0;
}

int exit_scene() {
  std::atexit([] {
    const int allocated = alloc();
    const int freed = cuMemFree(memory);
    const int waited = cuCtxSynchronize();
    cuuint64_t value = 0;
    const int attribute = cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
    CUcontext current = nullptr;
    std::printf("handler before init: alloc %d free %d sync %d attribute %d current %d\n",
                allocated, freed, waited, attribute, cuCtxGetCurrent(&current));
  });
  start();
  std::atexit([] { std::printf("handler after init: alloc %d\n", alloc()); });
  cuMemAlloc(&memory, 64);
  cuDeviceGetDefaultMemPool(&pool, 0);
  return 0;
}

int init_scene() {
  const int init = start();
  std::printf("init %d alloc %d\n", init, alloc());
  return 0;
}

int pools_scene() {
  start();
  int supported = -1;
  cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0);
  const int standard = cuDeviceGetDefaultMemPool(&pool, 0);
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  const int created = cuMemPoolCreate(&pool, &props);
  CUdeviceptr p = 0;
  std::printf("supported %d default %d create %d alloc %d\n", supported, standard, created,
              cuMemAllocAsync(&p, 64, nullptr));
  return 0;
}

int version_scene() {
  int version = 0;
  void* function = nullptr;
  cuDriverGetVersion(&version);
  cuGetProcAddress("cuCtxRecordEvent", &function, version, 0, nullptr);
  std::printf("version %d record %s\n", version, function != nullptr ? "found" : "missing");
  return 0;
}

int memory_scene() {
  start();
  size_t total = 0;
  cuDeviceTotalMem(&total, 0);
  std::printf("total %zu\n", total);
  return 0;
}

// Half of the device lies idle in a pool that keeps everything; then three quarters are wanted.
int reclaim_scene() {
  setenv("CUPOOL_SIM_MEMORY", "512M", 1);
  start();
  cuuint64_t all = ~cuuint64_t{0};
  cuuint64_t reserved = 0;
  CUdeviceptr p = 0;
  cuDeviceGetDefaultMemPool(&pool, 0);
  cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
  cuMemAllocAsync(&p, 256 << 20, nullptr);
  cuMemFreeAsync(p, nullptr);
  cuCtxSynchronize();
  const int allocated = cuMemAlloc(&p, 384 << 20);
  cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
  std::printf("alloc %d reserved %llu\n", allocated,
              static_cast<unsigned long long>(reserved >> 20));
  return 0;
}

// Three streams, of which two are destroyed and one comes again; then a full device.
int streams_scene() {
  setenv("CUPOOL_SIM_MEMORY", "64M", 1);
  start();
  const auto free_mib = [] {
    size_t free_bytes = 0;
    size_t total = 0;
    cuMemGetInfo(&free_bytes, &total);
    return free_bytes >> 20;
  };
  const size_t before = free_mib();
  const auto taken = [&] { return before - free_mib(); };
  CUstream streams[3] = {};
  std::printf("taken");
  for (CUstream& s : streams) {
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    std::printf(" %zu", taken());
  }
  cuStreamDestroy(streams[1]);
  cuStreamDestroy(streams[2]);
  CUdeviceptr rest = 0;
  cuMemAlloc(&rest, free_mib() << 20);
  std::printf(" full");
  for (int i = 0; i < 3; ++i) std::printf(" %d", cuStreamCreate(&streams[1], 0));
  cuDevicePrimaryCtxReset(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  std::printf(" reset %zu\n", taken());
  return 0;
}

// A program that only polls what its callback sets: nothing forces the work.
int patience_scene() {
  start();
  static std::atomic<bool> came{false};
  cuLaunchHostFunc(
      nullptr, [](void*) { came = true; }, nullptr);
  while (!came) std::this_thread::yield();
  std::printf("callback came\n");
  return 0;
}

struct Scene {
  const char* name;
  int (*play)();
};

constexpr Scene kScenes[] = {
    {"fork", fork_scene},         {"fork-busy", fork_busy_scene},
    {"exit", exit_scene},         {"fork-first", fork_first_scene},
    {"init", init_scene},         {"pools", pools_scene},
    {"version", version_scene},   {"memory", memory_scene},
    {"patience", patience_scene}, {"reclaim", reclaim_scene},
    {"streams", streams_scene},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Scene& scene : kScenes) {
    if (argc > 1 && std::strcmp(scene.name, argv[1]) == 0) return scene.play();
  }
  return 2;
}
