// SPDX-License-Identifier: Apache-2.0
// What the engine rests on, asked of the real driver: events of a context, what a wait for the
// legacy stream covers, captures, alignment and growth of pools, and what the first use of a pool
// costs. Prints one line a fact; docs/measurements keeps them.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "driver_facts.h"
#include "legacy_wait_facts.h"
#include "pool_facts.h"

namespace {

const CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                      CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                      CU_STREAM_CAPTURE_MODE_RELAXED};
const char* const kModeNames[] = {"global", "thread-local", "relaxed"};

CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuStreamIsCapturing(stream, &status);
  return status;
}

// Ends a capture and says whether it survived.
bool survived(CUstream stream) {
  CUgraph graph = nullptr;
  const CUresult result = cuStreamEndCapture(stream, &graph);
  if (graph != nullptr) cuGraphDestroy(graph);
  return result == CUDA_SUCCESS;
}

// What the first allocation of a process consists of, step by step, in the order of the steps.
void starting(CUdevice device) {
  double last = now_us();
  const auto step = [&last](const char* what) {
    const double now = now_us();
    std::printf("start: %s %.0f us\n", what, now - last);
    last = now_us();
  };
  CUdeviceptr plain = 0;
  MUST(cuMemAlloc(&plain, 1 << 20));
  step("cuMemAlloc of 1 MiB");
  MUST(cuMemAlloc(&plain, 1 << 20));
  step("cuMemAlloc of 1 MiB again");
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  step("non-blocking stream");
  for (const CUmemAllocationHandleType handle :
       {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_NONE,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    std::printf("start: a pool with%s a handle for other processes\n",
                handle == CU_MEM_HANDLE_TYPE_NONE ? "out" : "");
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = handle;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    CUmemoryPool pool = nullptr;
    MUST(cuMemPoolCreate(&pool, &properties));
    cuuint64_t keep = UINT64_MAX;
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    step("  cuMemPoolCreate");
    CUdeviceptr block = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 1 << 20, pool, stream));
    step("  first block");
    MUST(cuStreamSynchronize(stream));
    step("  its stream synchronised");
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    step("  block freed and synchronised");
    MUST(cuMemPoolTrimTo(pool, 0));
    step("  trimmed");
    MUST(cuMemAllocFromPoolAsync(&block, 1 << 20, pool, stream));
    MUST(cuStreamSynchronize(stream));
    step("  first block again, synchronised");
    CUdeviceptr large = 0;
    MUST(cuMemAllocFromPoolAsync(&large, 64 << 20, pool, stream));
    MUST(cuStreamSynchronize(stream));
    step("  64 MiB more, synchronised");
    MUST(cuMemFreeAsync(large, stream));
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
    step("  all freed and cuMemPoolDestroy");
  }
  CUdeviceptr large = 0;
  MUST(cuMemAlloc(&large, 64 << 20));
  step("cuMemAlloc of 64 MiB");
  MUST(cuMemFree(large));
  step("its cuMemFree");
  MUST(cuStreamDestroy(stream));
}

void fences(CUcontext context) {
  CUevent event = nullptr;
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  std::vector<double> record;
  std::vector<double> query;
  std::vector<double> until;
  std::vector<double> wait;
  int first_query_complete = 0;
  for (int i = 0; i < 2000; ++i) {
    const double begin = now_us();
    MUST(cuCtxRecordEvent(context, event));
    const double recorded = now_us();
    CUresult state = cuEventQuery(event);
    const double queried = now_us();
    if (state == CUDA_SUCCESS) ++first_query_complete;
    while (state == CUDA_ERROR_NOT_READY) state = cuEventQuery(event);
    const double complete = now_us();
    MUST(cuCtxRecordEvent(context, event));
    const double before = now_us();
    MUST(cuEventSynchronize(event));
    wait.push_back(now_us() - before);
    record.push_back(recorded - begin);
    query.push_back(queried - recorded);
    until.push_back(complete - begin);
  }
  std::printf(
      "idle context: record %.2f us, query %.2f us, record until complete %.2f us, "
      "synchronise %.2f us, complete at the first query %d of 2000\n",
      median(record), median(query), median(until), median(wait), first_query_complete);
  MUST(cuEventDestroy(event));
}

void copies() {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr device = 0;
  void* host = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  MUST(cuMemAlloc(&device, 1 << 20));
  MUST(cuMemAllocHost(&host, 1 << 20));
  std::vector<double> copy;
  std::vector<double> record;
  for (int i = 0; i < 2000; ++i) {
    const double begin = now_us();
    MUST(cuMemcpyHtoDAsync(device, host, 4096, stream));
    const double copied = now_us();
    MUST(cuEventRecord(event, stream));
    record.push_back(now_us() - copied);
    copy.push_back(copied - begin);
    if (i % 16 == 15) MUST(cuStreamSynchronize(stream));
  }
  std::printf("asynchronous copy of 4 KiB from pinned memory %.2f us, event after it %.2f us\n",
              median(copy), median(record));
  MUST(cuMemFree(device));
  MUST(cuMemFreeHost(host));
  MUST(cuStreamDestroy(stream));
  MUST(cuEventDestroy(event));
}

void captures(CUcontext context) {
  for (int m = 0; m < 3; ++m) {
    for (int thread_relaxed = 0; thread_relaxed < 2; ++thread_relaxed) {
      const auto ask = [&](const char* what, auto&& call) {
        CUstream stream = nullptr;
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cuStreamBeginCapture(stream, kModes[m]));
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        if (thread_relaxed != 0) MUST(cuThreadExchangeStreamCaptureMode(&mode));
        const CUresult result = call(stream);
        if (thread_relaxed != 0) MUST(cuThreadExchangeStreamCaptureMode(&mode));
        const bool active = status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE;
        const bool ended = survived(stream);
        std::printf("capture %s, thread %s: %s answers %d, capture %s\n", kModeNames[m],
                    thread_relaxed != 0 ? "relaxed" : "as it is", what, static_cast<int>(result),
                    active && ended ? "survives" : "is broken");
        MUST(cuStreamDestroy(stream));
      };
      CUevent recorded = nullptr;
      MUST(cuEventCreate(&recorded, CU_EVENT_DISABLE_TIMING));
      MUST(cuCtxRecordEvent(context, recorded));
      CUdeviceptr legacy = 0;
      MUST(cuMemAlloc(&legacy, 4096));
      ask("query of an event recorded before", [&](CUstream) { return cuEventQuery(recorded); });
      ask("synchronise an event recorded before",
          [&](CUstream) { return cuEventSynchronize(recorded); });
      ask("synchronise the context", [&](CUstream) { return cuCtxSynchronize(); });
      ask("record an event of the context",
          [&](CUstream) { return cuCtxRecordEvent(context, recorded); });
      ask("create a stream", [&](CUstream) {
        CUstream other = nullptr;
        const CUresult result = cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS) cuStreamDestroy(other);
        return result;
      });
      ask("free of legacy memory", [&](CUstream) { return cuMemFree(legacy); });
      CUdeviceptr other = 0;
      MUST(cuMemAlloc(&other, 4096));
      ask("cuMemFreeAsync of legacy memory in the capture",
          [&](CUstream stream) { return cuMemFreeAsync(other, stream); });
      std::printf("  then a free of it answers %d\n", static_cast<int>(cuMemFree(other)));
      cuEventDestroy(recorded);
    }
  }
}

// What might wait for all work while a stream captures, and harm no capture.
struct Barrier {
  const char* name;
  CUresult (*make)(void** what);
  CUresult (*release)(void* what);
};

CUresult make_device(void** what) {
  return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(what), 512);
}
CUresult release_device(void* what) {
  return cuMemFree(reinterpret_cast<CUdeviceptr>(what));
}
CUresult make_registered(void** what) {
  *what = std::aligned_alloc(4096, 4096);
  return cuMemHostRegister(*what, 4096, 0);
}
CUresult release_registered(void* what) {
  const CUresult result = cuMemHostUnregister(what);
  std::free(what);
  return result;
}

const Barrier kBarriers[] = {
    {"cuMemFree", make_device, release_device},
    {"cuMemFreeHost", [](void** what) { return cuMemAllocHost(what, 4096); }, cuMemFreeHost},
    {"cuMemHostUnregister", make_registered, release_registered},
};

// Whether one of them, in relaxed mode, waits for all work while a stream captures; made before the
// capture began.
void barriers(CUcontext context) {
  const char* const kinds[] = {"non-blocking", "blocking", "destroyed non-blocking"};
  for (const Barrier& barrier : kBarriers) {
    for (int m = 0; m < 3; ++m) {
      for (int kind = 0; kind < 3; ++kind) {
        MUST(cuCtxSynchronize());
        void* what = nullptr;
        MUST(barrier.make(&what));
        CUstream busy = nullptr;
        CUstream capturing = nullptr;
        MUST(cuStreamCreate(&busy, kind == 1 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
        MUST(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
        spin_on(busy, 20'000'000);
        CUevent all = nullptr;
        MUST(cuEventCreate(&all, CU_EVENT_DISABLE_TIMING));
        MUST(cuCtxRecordEvent(context, all));
        if (kind == 2) MUST(cuStreamDestroy(busy));
        MUST(cuStreamBeginCapture(capturing, kModes[m]));
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        MUST(cuThreadExchangeStreamCaptureMode(&mode));
        const double begin = now_us();
        const CUresult released = barrier.release(what);
        const double end = now_us();
        const CUresult after = cuEventQuery(all);
        MUST(cuThreadExchangeStreamCaptureMode(&mode));
        std::printf(
            "capture %s, 20 ms of work on a %s stream: %s answers %d in %.0f us, event of all work "
            "then %d, capture %s\n",
            kModeNames[m], kinds[kind], barrier.name, static_cast<int>(released), end - begin,
            static_cast<int>(after), survived(capturing) ? "survives" : "is broken");
        MUST(cuCtxSynchronize());
        MUST(cuStreamDestroy(capturing));
        if (kind != 2) MUST(cuStreamDestroy(busy));
        MUST(cuEventDestroy(all));
      }
    }
  }
}

// A capture that begins while another thread is inside the wait for the context: does it survive,
// and does the wait succeed?
void capture_during_synchronisation(CUcontext context) {
  for (int m = 0; m < 3; ++m) {
    CUstream busy = nullptr;
    CUstream capturing = nullptr;
    MUST(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    spin_on(busy, 40'000'000);
    CUresult waited = CUDA_ERROR_UNKNOWN;
    std::thread waiter([&] {
      MUST(cuCtxSetCurrent(context));
      waited = cuCtxSynchronize();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const CUresult begun = cuStreamBeginCapture(capturing, kModes[m]);
    waiter.join();
    const bool active = status_of(capturing) == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    std::printf(
        "capture %s begun 10 ms into another thread's cuCtxSynchronize: begin answers %d, "
        "synchronise %d, capture %s\n",
        kModeNames[m], static_cast<int>(begun), static_cast<int>(waited),
        begun == CUDA_SUCCESS && survived(capturing) && active ? "survives" : "is broken");
    MUST(cuStreamDestroy(capturing));
    MUST(cuStreamDestroy(busy));
  }
}

// What the driver answers in a host function, where CUDA calls are not permitted.
struct Asked {
  CUcontext context;
  CUevent event;
  CUdeviceptr block;
  CUresult record, current, query, free;
};

void CUDA_CB ask_in_host_function(void* data) {
  auto* const asked = static_cast<Asked*>(data);
  CUcontext current = nullptr;
  asked->record = cuCtxRecordEvent(asked->context, asked->event);
  asked->current = cuCtxGetCurrent(&current);
  asked->query = cuEventQuery(asked->event);
  asked->free = cuMemFree(asked->block);
}

void host_function(CUcontext context) {
  Asked asked = {};
  asked.context = context;
  CUstream stream = nullptr;
  MUST(cuEventCreate(&asked.event, CU_EVENT_DISABLE_TIMING));
  MUST(cuMemAlloc(&asked.block, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuLaunchHostFunc(stream, ask_in_host_function, &asked));
  MUST(cuStreamSynchronize(stream));
  std::printf(
      "in a host function: record of a context event %d, cuCtxGetCurrent %d, event query %d, "
      "free %d; the same free afterwards %d\n",
      static_cast<int>(asked.record), static_cast<int>(asked.current),
      static_cast<int>(asked.query), static_cast<int>(asked.free),
      static_cast<int>(cuMemFree(asked.block)));
  MUST(cuStreamDestroy(stream));
  MUST(cuEventDestroy(asked.event));
}

// Whether page-locked host memory, and so a barrier, is to be had where no device memory is, before
// a capture and in it.
void full_device() {
  std::vector<CUdeviceptr> taken;
  for (std::size_t size = std::size_t{64} << 30; size >= std::size_t{2} << 20; size /= 2) {
    CUdeviceptr address = 0;
    while (cuMemAlloc(&address, size) == CUDA_SUCCESS) taken.push_back(address);
  }
  CUdeviceptr none = 0;
  void* before = nullptr;
  void* during = nullptr;
  const CUresult device = cuMemAlloc(&none, 512);
  const CUresult host = cuMemAllocHost(&before, 4096);
  CUstream capturing = nullptr;
  MUST(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
  for (const CUstreamCaptureMode kind : kModes) {
    MUST(cuStreamBeginCapture(capturing, kind));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    const CUresult made = cuMemAllocHost(&during, 4096);
    const CUresult freed = made == CUDA_SUCCESS ? cuMemFreeHost(during) : CUDA_ERROR_NOT_READY;
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    std::printf(
        "full device, capture %s: in relaxed mode cuMemAllocHost answers %d, cuMemFreeHost of it "
        "%d, capture %s\n",
        kModeNames[kind], static_cast<int>(made), static_cast<int>(freed),
        survived(capturing) ? "survives" : "is broken");
  }
  std::printf("full device: cuMemAlloc of 512 bytes answers %d, cuMemAllocHost of 4096 %d\n",
              static_cast<int>(device), static_cast<int>(host));
  if (none != 0) MUST(cuMemFree(none));
  if (host == CUDA_SUCCESS) MUST(cuMemFreeHost(before));
  for (const CUdeviceptr address : taken) MUST(cuMemFree(address));
  MUST(cuStreamDestroy(capturing));
}

// A pool's block that is freed behind a kernel in its stream, comes again in that stream, and is
// freed without an order before anybody has used it: does the kernel count for whoever gets it
// next?
void unused_block() {
  constexpr std::size_t kBytes = 4 << 20;
  std::uint64_t ns = 30'000'000;
  void* arguments[] = {&ns};
  CUstream first = nullptr;
  CUstream second = nullptr;
  CUdeviceptr block = 0;
  CUdeviceptr again = 0;
  CUdeviceptr next = 0;
  std::uint32_t found = 0;
  MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAllocAsync(&block, kBytes, first));
  MUST(cuStreamSynchronize(first));
  MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, first, arguments, nullptr));
  MUST(cuMemsetD32Async(block, 1, kBytes / 4, first));
  MUST(cuMemFreeAsync(block, first));
  MUST(cuMemAllocAsync(&again, kBytes, first));
  MUST(cuMemFree(again));
  MUST(cuMemAllocAsync(&next, kBytes, second));
  MUST(cuMemsetD32Async(next, 2, kBytes / 4, second));
  const auto begin = std::chrono::steady_clock::now();
  MUST(cuStreamSynchronize(second));
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  MUST(cuCtxSynchronize());
  MUST(cuMemcpyDtoH(&found, next, sizeof found));
  std::printf(
      "unused block: came again %s, went to another stream %s after %.1f ms, written late %s\n",
      again == block ? "yes" : "no", next == block ? "yes" : "no", ms, found == 2 ? "no" : "yes");
  MUST(cuMemFreeAsync(next, second));
  MUST(cuStreamDestroy(first));
  MUST(cuStreamDestroy(second));
}

// Those that need a kernel: of the file that CUPOOL_TEST_MODULE names.
void with_kernels(CUcontext context) {
  CUmodule module = nullptr;
  const char* file = std::getenv("CUPOOL_TEST_MODULE");
  if (file == nullptr) return;
  MUST(cuModuleLoad(&module, file));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  legacy_waits(context);
  barriers(context);
  capture_during_synchronisation(context);
  unused_block();
  trims(context);
  MUST(cuModuleUnload(module));
}

}  // namespace

int main() {
  MUST(cuInit(0));
  CUcontext context = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  starting(0);
  fences(context);
  copies();
  captures(context);
  with_kernels(context);
  host_function(context);
  pools();
  mixed_pool();
  graph_node_pool();
  limited_pools();
  full_device();
  return 0;
}
