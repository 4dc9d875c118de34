// SPDX-License-Identifier: Apache-2.0
// A program whose work goes on only if a free holds nothing up but what the driver's free would
// (contract 2). Each way ends by itself without cupool, in less than its time. The simulated
// device has to be timed for moving_mark and the legacy stream, and late for the others, where work
// that nothing waits for stays pending. On a real GPU PROBE_KERNELS names the file of its kernels.
//
//   probe_free_holds lane_left         memory of a pool is freed after the lane was left
//   probe_free_holds moving_mark       memory is unmapped while another thread works and frees
//   probe_free_holds blocking_streams  a free behind work in the legacy stream, which is complete
//   probe_free_holds allocation        an allocation in a stream in which another thread works
//   probe_free_holds legacy_next       a free, and then work in the legacy stream
//   probe_free_holds legacy_before     work in the legacy stream, a free, and a blocking stream
//   probe_free_holds other_context     a free, and then work in a stream of another context
//   probe_free_holds trim              memory of a pool is freed in a lane, and its pool trimmed
//   probe_free_holds ending_context    another thread ends the context of an earlier free
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "probe.h"

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr uint64_t kWords = kBytes / 4;
constexpr uint64_t kLongNs = 20'000'000;
constexpr uint64_t kLongerNs = 2'000'000'000;
constexpr unsigned kSeconds = 5;

CUcontext context = nullptr;
CUfunction stamp_function = nullptr;
CUfunction spin_function = nullptr;
CUdeviceptr out = 0;

CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream created = nullptr;
  MUST(cuStreamCreate(&created, flags));
  return created;
}

CUdeviceptr allocate() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  return block;
}

void release(CUdeviceptr block) {
  MUST(cuMemFree(block));
}

void stamp(uint32_t value, CUstream to) {
  uint64_t words = kWords;
  void* arguments[] = {&out, &words, &value};
  MUST(cuLaunchKernel(stamp_function, 64, 1, 1, 256, 1, 1, 0, to, arguments, nullptr));
}

void spin(CUstream to, uint64_t ns = kLongNs) {
  void* arguments[] = {&ns};
  MUST(cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, to, arguments, nullptr));
}

// So much that its stream is the program's main one.
void work_alone_in(CUstream main) {
  for (int i = 0; i < 40; ++i) stamp(1, main);
  MUST(cuCtxSynchronize());
}

// Work that goes on until the host says so.
std::atomic<bool> stopped{false};
void wait_for_stop(void*) {
  while (!stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The free is no operation of the legacy stream, which would come between the blocking ones.
void lane_left() {
  CUstream const first = stream(CU_STREAM_DEFAULT);
  CUstream const second = stream(CU_STREAM_DEFAULT);
  CUstream const third = stream();
  CUdeviceptr own = 0;
  MUST(cuMemAllocAsync(&own, kBytes, third));
  MUST(cuStreamSynchronize(third));
  work_alone_in(CU_STREAM_LEGACY);
  stamp(1, CU_STREAM_LEGACY);
  const CUdeviceptr temporary = allocate();
  spin(CU_STREAM_LEGACY);
  release(temporary);
  MUST(cuLaunchHostFunc(first, wait_for_stop, nullptr));
  release(own);
  MUST(cuMemsetD32Async(out, 1, kWords, second));
  MUST(cuStreamSynchronize(second));
  stopped = true;
  MUST(cuStreamSynchronize(first));
}

// The thread's next work in that stream waits for what was before its free. The other one's does
// not.
void allocation() {
  CUstream const first = stream();
  CUstream const second = stream();
  const CUdeviceptr temporary = allocate();
  CUdeviceptr own = 0;
  CUevent end = nullptr;
  MUST(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
  stamp(1, first);
  MUST(cuCtxSynchronize());
  spin(first);
  MUST(cuEventRecord(end, first));
  release(temporary);
  MUST(cuMemAllocAsync(&own, kBytes, second));
  const bool is_pending = cuEventQuery(end) == CUDA_ERROR_NOT_READY;
  std::thread other([&] {
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemsetD32Async(out, 1, kWords, second));
    MUST(cuStreamSynchronize(second));
  });
  other.join();
  CHECK(!is_pending || cuEventQuery(end) == CUDA_ERROR_NOT_READY);
  MUST(cuMemFreeAsync(own, second));
  MUST(cuCtxSynchronize());
  MUST(cuEventDestroy(end));
}

// What the free has freed goes back to the device.
void trim() {
  constexpr size_t kLarge = 64 << 20;
  CUstream const main = stream();
  CUmemoryPool pool = nullptr;
  CUdeviceptr own = 0;
  cuuint64_t reserved = 0;
  work_alone_in(main);
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  MUST(cuMemAllocAsync(&own, kLarge, main));
  MUST(cuStreamSynchronize(main));
  const CUdeviceptr temporary = allocate();
  spin(main);
  release(temporary);
  release(own);
  MUST(cuMemPoolTrimTo(pool, 0));
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  CHECK(reserved == 0);
}

// The other thread's last kernel is never complete, but each one soon: in a tenth of a second, for
// which no busy machine keeps the thread from the next one.
void moving_mark() {
  constexpr size_t kGranule = 2 << 20;
  work_alone_in(CU_STREAM_LEGACY);
  std::atomic<int> rounds{0};
  std::thread other([&] {
    MUST(cuCtxSetCurrent(context));
    CUevent events[2] = {};
    for (CUevent& event : events) MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (; !stopped; ++rounds) {
      const CUdeviceptr temporary = allocate();
      spin(CU_STREAM_LEGACY, 5 * kLongNs);
      MUST(cuEventRecord(events[rounds % 2], CU_STREAM_LEGACY));
      release(temporary);
      MUST(cuEventSynchronize(events[1 - rounds % 2]));
    }
    for (CUevent const event : events) MUST(cuEventDestroy(event));
  });
  while (rounds < 3) std::this_thread::yield();
  CUmemAllocationProp properties{};
  CUmemGenericAllocationHandle handle{};
  CUdeviceptr mapped = 0;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemCreate(&handle, kGranule, &properties, 0));
  MUST(cuMemAddressReserve(&mapped, kGranule, 0, 0, 0));
  MUST(cuMemMap(mapped, kGranule, 0, handle, 0));
  const CUdeviceptr temporary = allocate();
  spin(CU_STREAM_LEGACY);
  release(temporary);
  MUST(cuMemUnmap(mapped, kGranule));
  MUST(cuMemRelease(handle));
  MUST(cuMemAddressFree(mapped, kGranule));
  stopped = true;
  other.join();
}

// The event that orders the thread's streams is no operation of the legacy stream either.
void blocking_streams() {
  CUstream const first = stream(CU_STREAM_DEFAULT);
  CUstream const second = stream(CU_STREAM_DEFAULT);
  stamp(1, first);
  stamp(1, second);
  MUST(cuCtxSynchronize());
  const CUdeviceptr temporary = allocate();
  std::atomic<bool> may_free{false};
  std::atomic<bool> used{false};
  std::atomic<bool> freed{false};
  std::thread other([&] {
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemsetD32(out, 1, kWords));
    used = true;
    while (!may_free) std::this_thread::yield();
    release(temporary);
    freed = true;
    while (!stopped) std::this_thread::yield();
  });
  while (!used) std::this_thread::yield();
  CUevent end = nullptr;
  MUST(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
  spin(first);
  MUST(cuEventRecord(end, first));
  may_free = true;
  while (!freed) std::this_thread::yield();
  // The driver's free has waited for the first stream.
  const bool is_pending = cuEventQuery(end) == CUDA_ERROR_NOT_READY;
  MUST(cuMemsetD32Async(out, 1, kWords, second));
  MUST(cuStreamSynchronize(second));
  CHECK(!is_pending || cuEventQuery(end) == CUDA_ERROR_NOT_READY);
  stopped = true;
  other.join();
  MUST(cuCtxSynchronize());
  MUST(cuEventDestroy(end));
}

// What a second thread's work waits for: less than a second where nothing holds it up.
void work_beside(CUcontext where, CUdeviceptr block, CUstream second, std::atomic<int>& step) {
  MUST(cuCtxSetCurrent(where));
  MUST(cuMemsetD32Async(block, 1, kWords, second));
  MUST(cuStreamSynchronize(second));
  step = 1;
  while (step != 2) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  // The first stream's kernel may wait for this.
  MUST(cuMemsetD32Async(block, 1, kWords, second));
  MUST(cuStreamSynchronize(second));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
}

// The legacy stream comes behind a free, and other threads' blocking streams behind it.
void legacy_next() {
  CUstream const first = stream();
  CUstream const second = stream(CU_STREAM_DEFAULT);
  const CUdeviceptr temporary = allocate();
  std::atomic<int> step{0};
  std::thread other([&] { work_beside(context, out, second, step); });
  while (step != 1) std::this_thread::yield();
  spin(first, kLongerNs);
  std::thread told([&] {  // while this one waits
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    step = 2;
  });
  release(temporary);
  MUST(cuMemsetD32Async(out, 2, kWords, CU_STREAM_LEGACY));
  other.join();
  told.join();
}

// Another thread's kernel goes on until that thread says so, by work in the legacy stream.
void legacy_before() {
  CUstream const first = stream();
  CUstream const third = stream(CU_STREAM_DEFAULT);
  const CUdeviceptr temporary = allocate();
  std::atomic<int> step{0};
  std::thread other([&] {
    MUST(cuCtxSetCurrent(context));
    spin(first, kLongerNs);
    work_beside(context, out, CU_STREAM_LEGACY, step);
  });
  while (step != 1) std::this_thread::yield();
  MUST(cuMemsetD32Async(out, 2, kWords, CU_STREAM_LEGACY));
  std::thread told([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    step = 2;
  });
  release(temporary);
  MUST(cuMemsetD32Async(out, 2, kWords, third));
  other.join();
  told.join();
}

// The driver's free keeps its thread, and others of its context, but none that works elsewhere.
void other_context() {
  CUcontext elsewhere = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&elsewhere, 1));
  MUST(cuCtxSetCurrent(elsewhere));
  CUstream const shared = stream();
  const CUdeviceptr there = allocate();
  for (int i = 0; i < 16; ++i) release(allocate());
  MUST(cuCtxSetCurrent(context));
  CUstream const first = stream();
  const CUdeviceptr temporary = allocate();
  std::atomic<int> step{0};
  std::thread other([&] { work_beside(elsewhere, there, shared, step); });
  while (step != 1) std::this_thread::yield();
  CUevent end = nullptr;
  MUST(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
  spin(first, kLongerNs);
  MUST(cuEventRecord(end, first));
  std::thread told([&] {  // while this one waits
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    step = 2;
  });
  release(temporary);
  MUST(cuCtxSetCurrent(elsewhere));
  MUST(cuMemsetD32Async(there, 2, kWords, shared));
  MUST(cuStreamSynchronize(shared));
  CHECK(cuEventQuery(end) == CUDA_SUCCESS);
  other.join();
  told.join();
  release(there);
  MUST(cuDevicePrimaryCtxRelease(1));
  MUST(cuCtxSetCurrent(context));
}

// The end of a context waits for all its work. A thread that has freed there does not wait with it.
void ending_context() {
  CUcontext other = nullptr;
  CUevent event = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&other, 1));
  MUST(cuCtxSetCurrent(other));
  CUstream const second = stream();
  const CUdeviceptr there = allocate();
  for (int i = 0; i < 16; ++i) release(allocate());
  MUST(cuCtxSetCurrent(context));
  CUstream const first = stream();
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr temporary = allocate();
  stamp(1, first);
  MUST(cuEventRecord(event, first));
  release(temporary);
  MUST(cuEventSynchronize(event));
  MUST(cuLaunchHostFunc(first, wait_for_stop, nullptr));
  std::atomic<bool> ends{false};
  std::thread other_thread([&] {
    ends = true;
    MUST(cuDevicePrimaryCtxReset(0));
  });
  // Long enough for the reset to begin, if not for sure.
  while (!ends) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  MUST(cuCtxSetCurrent(other));
  MUST(cuMemsetD8Async(there, 1, kBytes, second));
  MUST(cuStreamSynchronize(second));
  stopped = true;
  other_thread.join();
  release(there);
  MUST(cuDevicePrimaryCtxRelease(1));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  CUdevice device = 0;
  CUmodule module = nullptr;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  const char* const file = std::getenv("PROBE_KERNELS");
  MUST(file == nullptr ? cuModuleLoadData(&module, "") : cuModuleLoad(&module, file));
  MUST(cuModuleGetFunction(&stamp_function, module, "stamp_u32"));
  MUST(cuModuleGetFunction(&spin_function, module, "spin_ns"));
  out = allocate();
  for (int i = 0; i < 16; ++i) release(allocate());
  alarm(kSeconds);
  if (way == "lane_left") {
    lane_left();
  } else if (way == "moving_mark") {
    moving_mark();
  } else if (way == "allocation") {
    allocation();
  } else if (way == "trim") {
    trim();
  } else if (way == "blocking_streams") {
    blocking_streams();
  } else if (way == "legacy_next") {
    legacy_next();
  } else if (way == "legacy_before") {
    legacy_before();
  } else if (way == "other_context") {
    other_context();
  } else if (way == "ending_context") {
    ending_context();
    std::puts("ending_context: went on");
    return 0;
  } else {
    CHECK(!"a known way");
  }
  alarm(0);
  std::printf("%s: went on\n", way.c_str());
  release(out);
  MUST(cuDevicePrimaryCtxRelease(device));
  return 0;
}
