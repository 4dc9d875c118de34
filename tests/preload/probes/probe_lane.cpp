// SPDX-License-Identifier: Apache-2.0
// A program in one lane (design.md, Lanes), and each way of leaving it: work that is pending on a
// freed block is followed by the work of its next owner, in the same stream or elsewhere.
//
//   probe_lane leave=none      all work in one stream
//   probe_lane leave=WAY       the next owner works elsewhere; see ways below
//   probe_lane mode=away       frees what another stream uses, with work in the lane in between
//   probe_lane mode=again      the same with a stream that is destroyed, and whose handle comes
//   again probe_lane mode=hang       a kernel that never ends is stopped from another stream
//   probe_lane mode=steps      runs ahead of the GPU with blocks of many sizes
//   probe_lane mode=capture    one stream captures beside work of another one
//   probe_lane h=created       the one stream is a created one (default: legacy)
//   probe_lane early=FILE      writes there how often a freed block came back with work pending
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr uint64_t kWords = kBytes / 4;

CUcontext context = nullptr;
CUfunction stamp_function = nullptr;
CUfunction spin_function = nullptr;
uint64_t mallocs = 0;
uint64_t frees = 0;

// Not on standard output, which is the same with and without cupool.
const char* early_file = nullptr;
void note_early(int count) {
  FILE* const file = early_file == nullptr ? nullptr : std::fopen(early_file, "w");
  if (file == nullptr) return;
  std::fprintf(file, "%d\n", count);
  std::fclose(file);
}

void load() {
  CUmodule module = nullptr;
  MUST(cuModuleLoadData(&module, ""));
  MUST(cuModuleGetFunction(&stamp_function, module, "stamp_u32"));
  MUST(cuModuleGetFunction(&spin_function, module, "spin_ns"));
}

void spin(CUstream stream, uint64_t ns) {
  void* arguments[] = {&ns};
  MUST(cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

void stamp(CUdeviceptr block, uint32_t value, CUstream stream) {
  uint64_t words = kWords;
  void* arguments[] = {&block, &words, &value};
  MUST(cuLaunchKernel(stamp_function, 64, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
}

CUdeviceptr allocate() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  ++mallocs;
  probe::own(reinterpret_cast<void*>(block), kBytes);
  return block;
}

void release(CUdeviceptr block) {
  probe::disown(reinterpret_cast<void*>(block), kBytes);
  MUST(cuMemFree(block));
  ++frees;
}

// The pools have started, the thread has a cache, and the process its main stream.
void warm_up(CUstream lane = CU_STREAM_LEGACY) {
  for (int i = 0; i < 8; ++i) spin(lane, 1);
  for (int i = 0; i < 16; ++i) release(allocate());
  MUST(cuCtxSynchronize());
}

// Work of the new owner, which has to come after the old one's: each has its own stream for it.
void work_elsewhere(const std::string& way, CUdeviceptr block, CUstream lane) {
  CUstream other = nullptr;
  std::vector<unsigned char> host(kBytes, 0x22);
  if (way == "kernel" || way == "copy" || way == "fill" || way == "peer" || way == "value" ||
      way == "graph") {
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  }
  if (way == "none") {
    stamp(block, 0x22222222, lane);
  } else if (way == "kernel") {
    stamp(block, 0x22222222, other);
  } else if (way == "per_thread") {
    stamp(block, 0x22222222, CU_STREAM_PER_THREAD);
  } else if (way == "copy") {
    MUST(cuMemcpyHtoDAsync(block, host.data(), kBytes, other));
  } else if (way == "fill") {
    MUST(cuMemsetD32Async(block, 0x22222222, kWords, other));
  } else if (way == "synchronous_fill") {
    MUST(cuMemsetD32(block, 0x22222222, kWords));
  } else if (way == "synchronous_copy") {
    MUST(cuMemcpyHtoD(block, host.data(), kBytes));
  } else if (way == "value") {
    MUST(cuMemsetD32Async(block, 0x22222222, 1, other));
    MUST(cuStreamWriteValue32(other, block + 4, 0x22222222, 0));
    MUST(cuMemsetD32Async(block + 8, 0x22222222, kWords - 2, other));
  } else if (way == "graph") {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    MUST(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    stamp(block, 0x22222222, other);
    MUST(cuStreamEndCapture(other, &graph));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    MUST(cuGraphLaunch(executable, other));
    MUST(cuStreamSynchronize(other));
    MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(graph));
  } else if (way == "graph_in_lane") {
    CUstream recorder = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    MUST(cuStreamCreate(&recorder, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(recorder, CU_STREAM_CAPTURE_MODE_RELAXED));
    stamp(block, 0x22222222, recorder);
    MUST(cuStreamEndCapture(recorder, &graph));
    MUST(cuStreamDestroy(recorder));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    MUST(cuGraphLaunch(executable, lane));
    MUST(cuStreamSynchronize(lane));
    MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(graph));
  } else if (way == "thread") {
    std::thread worker([&] {
      MUST(cuCtxSetCurrent(context));
      CUstream own = nullptr;
      MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
      stamp(block, 0x22222222, own);
      MUST(cuStreamSynchronize(own));
      MUST(cuStreamDestroy(own));
    });
    worker.join();
  } else if (way == "context") {
    CUcontext second = nullptr;
#if CUDA_VERSION >= 13000
    MUST(cuCtxCreate(&second, nullptr, 0, 0));
#else
    MUST(cuCtxCreate(&second, 0, 0));
#endif
    MUST(cuMemsetD32(block, 0x22222222, kWords));
    MUST(cuCtxSynchronize());
    MUST(cuCtxDestroy(second));
    MUST(cuCtxSetCurrent(context));
  } else {
    CHECK(!"a known way");
  }
  if (other != nullptr) {
    MUST(cuStreamSynchronize(other));
    MUST(cuStreamDestroy(other));
  }
}

void hand_on(const std::string& way, bool created) {
  CUstream lane = CU_STREAM_LEGACY;
  if (created) MUST(cuStreamCreate(&lane, CU_STREAM_NON_BLOCKING));
  warm_up(lane);
  int early = 0;
  int wrong = 0;
  for (int round = 0; round < 6; ++round) {
    const CUdeviceptr block = allocate();
    spin(lane, 20000000);
    stamp(block, 0x11111111, lane);
    release(block);
    const CUdeviceptr next = allocate();
    early += next == block ? 1 : 0;
    work_elsewhere(round < 3 ? "none" : way, next, lane);
    MUST(cuCtxSynchronize());
    std::vector<unsigned char> host(kBytes);
    MUST(cuMemcpyDtoHAsync(host.data(), next, kBytes, lane));
    MUST(cuStreamSynchronize(lane));
    if (probe::count_other_bytes(host.data(), kBytes, 0x22) != 0) ++wrong;
    release(next);
  }
  std::printf("wrong %d\n", wrong);
  note_early(early);
  if (created) MUST(cuStreamDestroy(lane));
  CHECK(wrong == 0);
}

// A stream that the program destroys: the next stream may get its handle.
void destroy_and_create() {
  CUstream lane = nullptr;
  MUST(cuStreamCreate(&lane, CU_STREAM_NON_BLOCKING));
  warm_up(lane);
  const CUdeviceptr block = allocate();
  spin(lane, 20000000);
  stamp(block, 0x11111111, lane);
  release(block);
  const CUdeviceptr next = allocate();
  note_early(next == block ? 1 : 0);
  MUST(cuStreamDestroy(lane));
  CUstream again = nullptr;
  MUST(cuStreamCreate(&again, CU_STREAM_NON_BLOCKING));
  stamp(next, 0x22222222, again);
  MUST(cuCtxSynchronize());
  std::vector<unsigned char> host(kBytes);
  MUST(cuMemcpyDtoH(host.data(), next, kBytes));
  CHECK(probe::count_other_bytes(host.data(), kBytes, 0x22) == 0);
  release(next);
  MUST(cuStreamDestroy(again));
}

// Another stream works on a block that is freed, with work of the lane and of a third stream in
// between: the process must not return to the lane before the other stream's work is complete.
void free_while_away(bool again) {
  warm_up();
  int early = 0;
  for (int round = 0; round < 4; ++round) {
    const CUdeviceptr block = allocate();
    const CUdeviceptr small = allocate();
    CUstream other = nullptr;
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    stamp(small, 0x33333333, CU_STREAM_LEGACY);
    const auto left = std::chrono::steady_clock::now();
    spin(other, 20000000);
    stamp(block, 0x11111111, other);
    if (again) {
      MUST(cuStreamDestroy(other));
      MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
      MUST(cuMemsetD8Async(small, 1, 16, other));
      MUST(cuStreamSynchronize(other));
    }
    stamp(small, 0x33333333, CU_STREAM_LEGACY);
    release(block);
    const CUdeviceptr next = allocate();
    stamp(next, 0x22222222, CU_STREAM_LEGACY);
    MUST(cuCtxSynchronize());
    std::vector<unsigned char> host(kBytes);
    MUST(cuMemcpyDtoH(host.data(), next, kBytes));
    CHECK(probe::count_other_bytes(host.data(), kBytes, 0x22) == 0);
    // Back in the lane: it asks whether it may return once away for another 16th of the time.
    std::this_thread::sleep_for((std::chrono::steady_clock::now() - left) / 8);
    spin(CU_STREAM_LEGACY, 20000000);
    stamp(next, 0x11111111, CU_STREAM_LEGACY);
    release(next);
    const CUdeviceptr last = allocate();
    early += last == next ? 1 : 0;
    stamp(last, 0x22222222, CU_STREAM_LEGACY);
    MUST(cuCtxSynchronize());
    release(last);
    release(small);
    MUST(cuStreamDestroy(other));
  }
  note_early(early);
}

std::atomic<bool> stopped{false};
void wait_for_stop(void*) {
  while (!stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The lane's work goes on until another stream's work is complete. What was freed before does not
// hold that stream up, since the driver's own free would have waited for what came before it only.
void stop_from_elsewhere() {
  alarm(5);
  CUstream lane = nullptr;
  CUstream other = nullptr;
  MUST(cuStreamCreate(&lane, CU_STREAM_NON_BLOCKING));
  warm_up(lane);
  const CUdeviceptr flag = allocate();
  const CUdeviceptr block = allocate();
  stamp(block, 0x11111111, lane);
  release(block);
  const CUdeviceptr next = allocate();
  note_early(next == block ? 1 : 0);
  MUST(cuLaunchHostFunc(lane, wait_for_stop, nullptr));
  stamp(next, 0x22222222, lane);
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  MUST(cuMemsetD32Async(flag, 1, kWords, other));
  MUST(cuStreamSynchronize(other));
  stopped = true;
  MUST(cuStreamSynchronize(lane));
  release(next);
  release(flag);
  MUST(cuStreamDestroy(other));
  MUST(cuStreamDestroy(lane));
}

// More than the device has in all, freed with work pending: what lies ready is no idle memory, but
// comes back when memory is short.
void fill(bool created) {
  CUstream lane = CU_STREAM_LEGACY;
  if (created) MUST(cuStreamCreate(&lane, CU_STREAM_NON_BLOCKING));
  size_t free_bytes = 0;
  size_t total = 0;
  warm_up(lane);
  MUST(cuMemGetInfo(&free_bytes, &total));
  std::vector<CUdeviceptr> blocks;
  for (int round = 0; round < 6; ++round) {
    // Sizes that do not serve each other.
    const size_t size = (size_t{8} << 20) << round;
    for (size_t have = 0; have + size <= free_bytes / 2; have += size) {
      CUdeviceptr block = 0;
      MUST(cuMemAlloc(&block, size));
      ++mallocs;
      probe::own(reinterpret_cast<void*>(block), size);
      MUST(cuMemsetD8Async(block, round, 4096, lane));
      blocks.push_back(block);
    }
    for (const CUdeviceptr block : blocks) {
      probe::disown(reinterpret_cast<void*>(block), size);
      MUST(cuMemFree(block));
      ++frees;
    }
    blocks.clear();
  }
  if (created) MUST(cuStreamDestroy(lane));
}

// Steps of a program that runs ahead of the GPU, as a training loop does: blocks of many sizes,
// each used and freed before the host waits for anything. A second thread frees half of them.
void steps() {
  warm_up();
  constexpr int kBlocks = 40;
  for (int step = 0; step < 12; ++step) {
    std::vector<std::pair<CUdeviceptr, size_t>> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      const size_t size = (size_t{1} << 20) + static_cast<size_t>(i % 13) * 700000;
      CUdeviceptr block = 0;
      CUdeviceptr temporary = 0;
      MUST(cuMemAlloc(&block, size));
      MUST(cuMemAlloc(&temporary, size / 2));
      mallocs += 2;
      probe::own(reinterpret_cast<void*>(block), size);
      probe::own(reinterpret_cast<void*>(temporary), size / 2);
      MUST(cuMemsetD8Async(block, static_cast<unsigned char>(step), size, CU_STREAM_LEGACY));
      MUST(cuMemsetD8Async(temporary, 1, size / 2, CU_STREAM_LEGACY));
      probe::disown(reinterpret_cast<void*>(temporary), size / 2);
      MUST(cuMemFree(temporary));
      ++frees;
      blocks.emplace_back(block, size);
    }
    const auto free_half = [&](int first) {
      for (int i = kBlocks - 1 - first; i >= 0; i -= 2) {
        const auto& [block, size] = blocks[static_cast<size_t>(i)];
        probe::disown(reinterpret_cast<void*>(block), size);
        MUST(cuMemFree(block));
      }
    };
    free_half(0);
    std::thread other([&] {
      MUST(cuCtxSetCurrent(context));
      free_half(1);
    });
    other.join();
    frees += kBlocks;
  }
}

// What a capture records, beside work in the lane.
void capture() {
  CUstream lane = nullptr;
  CUstream other = nullptr;
  CUgraph graph = nullptr;
  size_t nodes = 0;
  MUST(cuStreamCreate(&lane, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr block = allocate();
  stamp(block, 0x11111111, lane);
  MUST(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (int i = 0; i < 3; ++i) {
    stamp(block, 0x22222222, other);
    stamp(block, 0x11111111, lane);
  }
  MUST(cuStreamEndCapture(other, &graph));
  MUST(cuGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 3);
  MUST(cuGraphDestroy(graph));
  MUST(cuCtxSynchronize());
  release(block);
  MUST(cuStreamDestroy(other));
  MUST(cuStreamDestroy(lane));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = probe::argument(argc, argv, "leave", "none");
  const std::string mode = probe::argument(argc, argv, "mode", "leave");
  const bool created = probe::argument_is(argc, argv, "h", "created");
  early_file = probe::argument(argc, argv, "early", nullptr);
  MUST(cuInit(0));
  CUdevice device = 0;
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  load();
  if (mode == "hang") {
    stop_from_elsewhere();
  } else if (mode == "destroy") {
    destroy_and_create();
  } else if (mode == "away" || mode == "again") {
    free_while_away(mode == "again");
  } else if (mode == "steps") {
    steps();
  } else if (mode == "capture") {
    capture();
  } else if (mode == "fill") {
    fill(created);
  } else {
    hand_on(way, created);
  }
  probe::print_counts(mallocs, frees);
  MUST(cuDevicePrimaryCtxRelease(device));
  return 0;
}
