// SPDX-License-Identifier: Apache-2.0
// A program that orders its streams by a free (contract 2): work in one stream, cuMemFree of
// something else, then work that needs the first one's results. The driver's own free waits for the
// context, so each round is right without cupool.
//
//   probe_stream_order WAY     one of the ways below
//   probe_stream_order hang    what is submitted after a free holds no other stream up
//   probe_stream_order hang_devices    nor does work of another device
// PROBE_KERNELS names the file of its kernels on a real GPU; the simulated device has them built
// in.
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr uint64_t kWords = kBytes / 4;
constexpr uint64_t kLongNs = 20'000'000;

CUcontext context = nullptr;
CUfunction stamp_function = nullptr;
CUfunction spin_function = nullptr;
std::atomic<uint64_t> mallocs{0};
std::atomic<uint64_t> frees{0};
CUdeviceptr results = 0;
CUdeviceptr out = 0;

CUresult load_kernels(CUmodule* module) {
  const char* const file = std::getenv("PROBE_KERNELS");
  return file == nullptr ? cuModuleLoadData(module, "") : cuModuleLoad(module, file);
}

CUstream stream() {
  CUstream created = nullptr;
  MUST(cuStreamCreate(&created, CU_STREAM_NON_BLOCKING));
  return created;
}

CUstream blocking_stream() {
  CUstream created = nullptr;
  MUST(cuStreamCreate(&created, CU_STREAM_DEFAULT));
  return created;
}

CUdeviceptr allocate() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  ++mallocs;
  return block;
}

void release(CUdeviceptr block) {
  MUST(cuMemFree(block));
  ++frees;
}

CUdeviceptr allocate_in_order(CUstream in) {
  CUdeviceptr block = 0;
  MUST(cuMemAllocAsync(&block, kBytes, in));
  return block;
}

// By a node of a graph, which outlives the block.
CUdeviceptr allocate_by_graph(CUstream in, std::vector<CUgraph>* graphs) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  MUST(cuStreamBeginCapture(in, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  const CUdeviceptr block = allocate_in_order(in);
  MUST(cuStreamEndCapture(in, &graph));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, in));
  MUST(cuStreamSynchronize(in));
  MUST(cuGraphExecDestroy(exec));
  graphs->push_back(graph);
  return block;
}

void stamp(CUdeviceptr block, uint32_t value, CUstream to) {
  uint64_t words = kWords;
  void* arguments[] = {&block, &words, &value};
  MUST(cuLaunchKernel(stamp_function, 64, 1, 1, 256, 1, 1, 0, to, arguments, nullptr));
}

void spin(CUstream in) {
  uint64_t ns = kLongNs;
  void* arguments[] = {&ns};
  MUST(cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, in, arguments, nullptr));
}

CUcontext other_device() {
  CUcontext other = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&other, 1));
  MUST(cuCtxSetCurrent(other));
  MUST(cuCtxEnablePeerAccess(context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuCtxEnablePeerAccess(other, 0));
  return other;
}

// Results that take a while, and a free of another block, which may have been used or not.
void produce(uint32_t value, CUstream to) {
  const CUdeviceptr temporary = allocate();
  spin(to);
  stamp(results, value, to);
  release(temporary);
}

void consume(CUstream in) {
  MUST(cuMemcpyDtoDAsync(out, results, kBytes, in));
}

// Nothing else is waited for, so that the simulated device runs what this stream needs, and no
// more.
void consume_alone(CUstream in) {
  consume(in);
  MUST(cuStreamSynchronize(in));
}

bool is_right(uint32_t value, CUdeviceptr block) {
  MUST(cuCtxSynchronize());
  std::vector<uint32_t> host(kWords);
  MUST(cuMemcpyDtoH(host.data(), block, kBytes));
  return host.front() == value && host.back() == value;
}

void in_thread(const std::function<void()>& work) {
  std::thread thread([&] {
    MUST(cuCtxSetCurrent(context));
    work();
  });
  thread.join();
}

// One round; true if the results are right.
bool round_of(const std::string& way, uint32_t value) {
  static CUstream const first = stream();
  static CUstream const second = stream();
  if (way == "copy") {
    produce(value, first);
    consume_alone(second);
  } else if (way == "legacy") {  // a copy that returns when it is done
    produce(value, first);
    MUST(cuMemcpyDtoD(out, results, kBytes));
  } else if (way == "from_legacy") {
    produce(value, CU_STREAM_LEGACY);
    consume_alone(second);
  } else if (way == "per_thread") {
    produce(value, CU_STREAM_PER_THREAD);
    consume_alone(second);
  } else if (way == "fill") {  // the second stream writes last
    produce(value + 1, first);
    MUST(cuMemsetD32Async(results, value, kWords, second));
    MUST(cuStreamSynchronize(second));
    return is_right(value, results);
  } else if (way == "graph") {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    produce(value, first);
    MUST(cuStreamBeginCapture(second, CU_STREAM_CAPTURE_MODE_RELAXED));
    consume(second);
    MUST(cuStreamEndCapture(second, &graph));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    MUST(cuGraphLaunch(executable, second));
    MUST(cuStreamSynchronize(second));
    MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(graph));
  } else if (way == "beside_capture") {  // another stream captures meanwhile
    static CUstream const third = stream();
    CUgraph graph = nullptr;
    produce(value, first);
    MUST(cuStreamBeginCapture(third, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemsetD32Async(out, 1, 1, third));
    consume_alone(second);
    MUST(cuStreamEndCapture(third, &graph));
    MUST(cuGraphDestroy(graph));
  } else if (way == "destroyed") {
    CUstream const gone = stream();
    produce(value, gone);
    MUST(cuStreamDestroy(gone));
    release(allocate());
    CUstream const next = stream();  // may have the handle of the other one
    consume_alone(next);
    MUST(cuStreamDestroy(next));
  } else if (way == "destroyed_before") {
    CUstream const gone = stream();
    const CUdeviceptr temporary = allocate();
    uint64_t ns = kLongNs;
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, gone, arguments, nullptr));
    stamp(results, value, gone);
    MUST(cuStreamDestroy(gone));
    release(temporary);
    consume_alone(second);
  } else if (way == "thread") {  // a thread that ends
    in_thread([&] { produce(value, first); });
    consume_alone(second);
  } else if (way == "event") {  // handed on by an event of a third stream
    static CUstream const third = stream();
    CUevent event = nullptr;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    produce(value, first);
    MUST(cuEventRecord(event, third));
    in_thread([&] {
      MUST(cuStreamWaitEvent(second, event, 0));
      consume_alone(second);
    });
    MUST(cuEventDestroy(event));
  } else if (way.rfind("event_in_lane", 0) == 0) {
    // Of a stream without work, while all work is in one stream. In the second way another thread
    // has freed, and ended, and the one that records has no work of its own.
    static CUevent event = nullptr;
    static CUevent before = nullptr;
    if (event == nullptr) {
      for (CUevent* each : {&event, &before}) MUST(cuEventCreate(each, CU_EVENT_DISABLE_TIMING));
      for (int i = 0; i < 40; ++i) stamp(out, 1, first);
      MUST(cuStreamSynchronize(first));
    }
    const auto work_and_free = [&] {
      const CUdeviceptr temporary = allocate();
      stamp(results, value, first);
      MUST(cuEventRecord(before, first));
      release(temporary);
    };
    bool complete = false;
    const auto record = [&] {
      MUST(cuEventRecord(event, second));
      MUST(cuEventSynchronize(event));
      complete = cuEventQuery(before) == CUDA_SUCCESS;
    };
    if (way == "event_in_lane") {
      work_and_free();
      record();
    } else {
      in_thread([&] {
        in_thread(work_and_free);
        record();
      });
    }
    return is_right(value, results) && complete;
  } else if (way == "elapsed") {
    CUevent begin = nullptr;
    CUevent end = nullptr;
    float milliseconds = -1;
    MUST(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    MUST(cuEventCreate(&end, CU_EVENT_DEFAULT));
    MUST(cuEventRecord(begin, first));
    const CUdeviceptr temporary = allocate();
    stamp(results, value, first);
    MUST(cuEventRecord(end, first));
    release(temporary);
    const CUresult result = cuEventElapsedTime(&milliseconds, begin, end);
    MUST(cuMemcpyDtoDAsync(out, results, kBytes, first));
    MUST(cuCtxSynchronize());
    MUST(cuEventDestroy(begin));
    MUST(cuEventDestroy(end));
    if (result != CUDA_SUCCESS) return false;
  } else if (way == "crowd") {  // more threads than may wait on the device
    std::atomic<int> wrong_threads{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&] {
        MUST(cuCtxSetCurrent(context));
        CUstream const own[] = {stream(), stream()};
        const CUdeviceptr from = allocate();
        const CUdeviceptr to = allocate();
        std::vector<uint32_t> host(kWords);
        for (uint32_t step = 1; step <= 4; ++step) {
          const CUdeviceptr temporary = allocate();
          stamp(from, value + step, own[step % 2]);
          release(temporary);
          MUST(cuMemcpyDtoDAsync(to, from, kBytes, own[1 - step % 2]));
          MUST(cuMemcpyDtoHAsync(host.data(), to, kBytes, own[1 - step % 2]));
          MUST(cuStreamSynchronize(own[1 - step % 2]));
          if (host.front() != value + step || host.back() != value + step) ++wrong_threads;
        }
        release(from);
        release(to);
        for (CUstream const each : own) MUST(cuStreamDestroy(each));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return wrong_threads == 0;
  } else if (way == "devices") {  // the other device works on the results
    static CUcontext const elsewhere = other_device();
    MUST(cuCtxSetCurrent(elsewhere));
    static CUstream const third = stream();
    static const CUdeviceptr copy = allocate();
    MUST(cuCtxSetCurrent(context));
    produce(value, first);
    MUST(cuCtxSetCurrent(elsewhere));
    MUST(cuMemcpyDtoDAsync(copy, results, kBytes, third));
    MUST(cuStreamSynchronize(third));
    const bool right = is_right(value, copy);
    MUST(cuCtxSetCurrent(context));
    if (!right) return false;
    consume(first);
  } else if (way == "entry") {  // a thread's table is full, and an entry gets another stream
    static std::vector<CUstream> streams;
    static CUevent event = nullptr;
    if (event == nullptr) MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    while (streams.size() < 40) streams.push_back(stream());
    // Streams 0 to 15 fill the table.
    for (size_t i = 0; i < 16; ++i) stamp(out, 1, streams[i]);
    release(allocate());
    MUST(cuCtxSynchronize());
    for (size_t i = 0; i < 16; ++i) {
      stamp(out, 1, streams[i]);
      MUST(cuStreamSynchronize(streams[i]));
      MUST(cuEventRecord(event, streams[16 + value]));
      produce(value, streams[i]);
      MUST(cuMemcpyDtoDAsync(out, results, kBytes, streams[(i + 1) % 16]));
      MUST(cuStreamSynchronize(streams[(i + 1) % 16]));
      if (!is_right(value, out)) return false;
      MUST(cuMemsetD32(results, 0, kWords));
      MUST(cuCtxSynchronize());
    }
    return true;
  } else if (way == "default_streams") {  // one handle, another stream in each context
    CUcontext other = nullptr;
    stamp(out, 1, CU_STREAM_LEGACY);
    release(allocate());
    stamp(out, 1, CU_STREAM_LEGACY);
    MUST(cuCtxCreate(&other, nullptr, 0, 0));
    CUmodule module = nullptr;
    MUST(load_kernels(&module));
    CUfunction const functions[] = {stamp_function, spin_function};
    MUST(cuModuleGetFunction(&stamp_function, module, "stamp_u32"));
    MUST(cuModuleGetFunction(&spin_function, module, "spin_ns"));
    const CUdeviceptr there[] = {results, out};
    results = allocate();
    out = allocate();
    CUstream const next = stream();
    produce(value, CU_STREAM_LEGACY);
    consume_alone(next);
    const bool right = is_right(value, out);
    release(results);
    release(out);
    results = there[0];
    out = there[1];
    stamp_function = functions[0];
    spin_function = functions[1];
    MUST(cuCtxDestroy(other));
    return right;
  } else if (way == "elapsed_later") {  // an event without work after it or before it
    CUevent begin = nullptr;
    CUevent end = nullptr;
    float milliseconds = -1;
    MUST(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    MUST(cuEventCreate(&end, CU_EVENT_DEFAULT));
    const CUdeviceptr temporaries[] = {allocate(), allocate()};
    MUST(cuEventRecord(begin, first));
    stamp(results, value, first);
    release(temporaries[0]);
    MUST(cuEventRecord(end, first));
    release(temporaries[1]);
    const CUresult result = cuEventElapsedTime(&milliseconds, begin, end);
    MUST(cuMemcpyDtoDAsync(out, results, kBytes, first));
    MUST(cuCtxSynchronize());
    MUST(cuEventDestroy(begin));
    MUST(cuEventDestroy(end));
    if (result != CUDA_SUCCESS) return false;
  } else if (way == "elapsed_elsewhere") {  // the last event is in a stream that only waits
    CUevent begin = nullptr;
    CUevent middle = nullptr;
    CUevent end = nullptr;
    float milliseconds = -1;
    MUST(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    MUST(cuEventCreate(&middle, CU_EVENT_DEFAULT));
    MUST(cuEventCreate(&end, CU_EVENT_DEFAULT));
    const CUdeviceptr temporary = allocate();
    MUST(cuEventRecord(begin, first));
    stamp(results, value, first);
    MUST(cuEventRecord(middle, first));
    MUST(cuStreamWaitEvent(second, middle, 0));
    MUST(cuEventRecord(end, second));
    release(temporary);
    const CUresult result = cuEventElapsedTime(&milliseconds, begin, end);
    MUST(cuMemcpyDtoDAsync(out, results, kBytes, first));
    MUST(cuCtxSynchronize());
    for (CUevent const each : {begin, middle, end}) MUST(cuEventDestroy(each));
    if (result != CUDA_SUCCESS) return false;
  } else if (way == "unmapped") {  // memory that the program takes away after the free
    constexpr size_t kGranule = 2 << 20;
    CUmemAllocationProp properties{};
    CUmemGenericAllocationHandle handle{};
    CUdeviceptr mapped = 0;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemCreate(&handle, kGranule, &properties, 0));
    MUST(cuMemAddressReserve(&mapped, kGranule, 0, 0, 0));
    MUST(cuMemMap(mapped, kGranule, 0, handle, 0));
    MUST(cuMemSetAccess(mapped, kGranule, &access, 1));
    const CUdeviceptr temporary = allocate();
    uint64_t ns = kLongNs;
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, first, arguments, nullptr));
    stamp(mapped, value, first);
    MUST(cuMemcpyDtoDAsync(out, mapped, kBytes, first));
    release(temporary);
    MUST(cuMemUnmap(mapped, kGranule));
    MUST(cuMemRelease(handle));
    MUST(cuMemAddressFree(mapped, kGranule));
  } else if (way == "joined") {  // a thread ends, and the one that joins it frees
    const CUdeviceptr temporary = allocate();
    in_thread([&] {
      uint64_t ns = kLongNs;
      void* arguments[] = {&ns};
      MUST(cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, first, arguments, nullptr));
      stamp(results, value, first);
    });
    release(temporary);
    consume_alone(second);
  } else if (way.rfind("pool", 0) == 0) {  // a block of the program's pool is freed as well
    static CUstream const third = stream();
    std::vector<CUgraph> graphs;
    const CUdeviceptr own =
        way == "pool_of_graphs" ? allocate_by_graph(first, &graphs) : allocate_in_order(first);
    MUST(cuStreamSynchronize(first));
    const CUdeviceptr temporary = allocate();
    uint64_t ns = kLongNs;
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, first, arguments, nullptr));
    stamp(own, value, first);
    MUST(cuMemcpyDtoDAsync(results, own, kBytes, first));
    release(temporary);
    // Freed in its turn by cuMemFree, or in the second stream. The next owner uses a third stream
    // or the second one.
    if (way == "pool_unordered" || way == "pool_of_graphs") {
      release(own);
    } else {
      MUST(cuMemFreeAsync(own, second));
    }
    if (way == "pool") MUST(cuStreamSynchronize(second));
    bool kept = true;  // what the next owner wrote, when all work is complete
    in_thread([&] {
      CUstream const of_next = way == "pool_shared" ? second : third;
      const CUdeviceptr next = way == "pool_of_graphs" ? allocate_by_graph(of_next, &graphs)
                                                       : allocate_in_order(of_next);
      stamp(next, value + 100, of_next);
      MUST(cuStreamSynchronize(of_next));
      kept = is_right(value + 100, next);
      MUST(cuMemFreeAsync(next, of_next));
      MUST(cuStreamSynchronize(of_next));
    });
    if (!kept) return false;
    consume_alone(second);
    for (CUgraph const graph : graphs) MUST(cuGraphDestroy(graph));
  } else if (way == "context_end") {  // ends with its streams, whose handles come back
    for (int repeat = 0; repeat < 2; ++repeat) {
      CUcontext other = nullptr;
      MUST(cuCtxCreate(&other, nullptr, 0, 0));
      CUmodule module = nullptr;
      MUST(load_kernels(&module));
      CUfunction const functions[] = {stamp_function, spin_function};
      MUST(cuModuleGetFunction(&stamp_function, module, "stamp_u32"));
      MUST(cuModuleGetFunction(&spin_function, module, "spin_ns"));
      const CUdeviceptr there[] = {results, out};
      results = allocate();
      out = allocate();
      CUstream const from = stream();
      CUstream const to = stream();
      produce(value, from);
      consume_alone(to);
      const bool right = is_right(value, out);
      stamp(out, 1, from);
      release(results);
      release(out);
      results = there[0];
      out = there[1];
      stamp_function = functions[0];
      spin_function = functions[1];
      MUST(cuCtxDestroy(other));
      MUST(cuCtxSetCurrent(context));
      if (!right) return false;
    }
    return true;
  } else if (way == "freed_in_legacy") {  // a free in stream order is an operation of its stream
    static CUstream const blocking[] = {blocking_stream(), blocking_stream()};
    const CUdeviceptr temporary = allocate();
    spin(blocking[0]);
    stamp(results, value, blocking[0]);
    MUST(cuMemFreeAsync(temporary, CU_STREAM_LEGACY));
    ++frees;
    consume_alone(blocking[1]);
  } else if (way == "freed_in_blocking") {
    static CUstream const blocking = blocking_stream();
    const CUdeviceptr temporary = allocate();
    spin(CU_STREAM_LEGACY);
    stamp(results, value, CU_STREAM_LEGACY);
    MUST(cuMemFreeAsync(temporary, blocking));
    ++frees;
    MUST(cuStreamSynchronize(blocking));  // behind the legacy stream, by that free alone
    consume_alone(second);
  } else if (way == "waits_devices") {  // the stream has come to wait for another device's work
    static CUcontext const elsewhere = other_device();
    static CUevent event = nullptr;
    MUST(cuCtxSetCurrent(elsewhere));
    static CUstream const there = stream();
    if (event == nullptr) MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemsetD32Async(results, value, kWords, there));
    MUST(cuEventRecord(event, there));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamWaitEvent(second, event, 0));
    release(allocate());
    consume_alone(first);
  } else if (way == "waits_thread") {  // or for another thread's
    static CUstream const third = stream();
    static CUevent event = nullptr;
    if (event == nullptr) MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    std::atomic<bool> recorded{false};
    std::atomic<bool> done{false};
    std::thread other([&] {
      MUST(cuCtxSetCurrent(context));
      spin(third);
      stamp(results, value, third);
      MUST(cuEventRecord(event, third));
      recorded = true;
      while (!done) std::this_thread::yield();  // it lives, and frees nothing
    });
    while (!recorded) std::this_thread::yield();
    MUST(cuStreamWaitEvent(second, event, 0));
    release(allocate());
    consume_alone(first);
    done = true;
    other.join();
  } else if (way == "many") {  // more streams than a thread's table holds
    static std::vector<CUstream> streams;
    while (streams.size() < 40) streams.push_back(stream());
    std::vector<CUdeviceptr> steps;
    for (size_t i = 0; i < streams.size(); ++i) {
      const CUdeviceptr temporary = allocate();
      steps.push_back(allocate());
      if (i == 0) {
        stamp(steps[i], value, streams[i]);
      } else {
        MUST(cuMemcpyDtoDAsync(steps[i], steps[i - 1], kBytes, streams[i]));
      }
      release(temporary);
    }
    MUST(cuMemcpyDtoDAsync(out, steps.back(), kBytes, streams[7]));
    MUST(cuStreamSynchronize(streams[7]));
    for (const CUdeviceptr step : steps) release(step);
  } else {
    CHECK(!"a known way");
  }
  return is_right(value, out);
}

std::atomic<bool> stopped{false};
void wait_for_stop(void*) {
  while (!stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The driver's free waits for what comes before it, and no more: work that is submitted after it
// goes on until another stream's work is complete.
void stop_from_elsewhere() {
  alarm(5);
  CUstream const first = stream();
  CUstream const second = stream();
  stamp(out, 1, second);
  produce(1, first);
  MUST(cuLaunchHostFunc(first, wait_for_stop, nullptr));
  MUST(cuMemsetD32Async(out, 1, kWords, second));
  MUST(cuStreamSynchronize(second));
  stopped = true;
  MUST(cuCtxSynchronize());
}

// A free waits for its own context. Work on another device goes on until this one's is complete.
void stop_from_other_device() {
  alarm(5);
  CUcontext const elsewhere = other_device();
  CUstream const first = stream();
  MUST(cuLaunchHostFunc(first, wait_for_stop, nullptr));
  MUST(cuCtxSetCurrent(elsewhere));
  CUstream const second = stream();
  const CUdeviceptr block = allocate();
  for (int i = 0; i < 8; ++i) release(allocate());
  MUST(cuMemsetD32Async(block, 1, kWords, second));
  release(allocate());
  CUstream const third = stream();
  MUST(cuMemsetD32Async(block, 2, kWords, third));
  MUST(cuStreamSynchronize(third));
  stopped = true;
  release(block);
  MUST(cuCtxSetCurrent(context));
  MUST(cuCtxSynchronize());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "copy";
  MUST(cuInit(0));
  CUdevice device = 0;
  CUmodule module = nullptr;
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(load_kernels(&module));
  MUST(cuModuleGetFunction(&stamp_function, module, "stamp_u32"));
  MUST(cuModuleGetFunction(&spin_function, module, "spin_ns"));
  results = allocate();
  out = allocate();
  for (int i = 0; i < 16; ++i) release(allocate());
  int wrong = 0;
  if (way == "hang") {
    stop_from_elsewhere();
  } else if (way == "hang_devices") {
    stop_from_other_device();
  } else {
    for (uint32_t value = 1; value <= 6; ++value) wrong += round_of(way, value) ? 0 : 1;
  }
  std::printf("%s: wrong %d\n", way.c_str(), wrong);
  release(results);
  release(out);
  probe::print_counts(mallocs, frees);
  MUST(cuDevicePrimaryCtxRelease(device));
  return wrong == 0 ? 0 : 1;
}
