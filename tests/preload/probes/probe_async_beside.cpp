// SPDX-License-Identifier: Apache-2.0
// A stream has freed 160 MiB and is done with them, and a larger block is wanted on a device of 256
// MiB, while something else goes on that waits for the block. The driver alone has it at once.
//   probe_async_beside copy      another thread copies to the host, in the legacy stream
//   probe_async_beside gap       a busy stream has freed, too, and what lies free is part of it
//   probe_async_beside chunk     after some time, in a program that had small blocks of cuMemAlloc
//   probe_async_beside contexts  after some time, in another context than the busy stream
//   probe_async_beside abroad    another thread has freed by cuMemFree, and works in another
//   context
#include <cuda.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "probe_stream_ordered.h"

namespace {

using probe::go_on_for;
using probe::go_on_until_over;
using probe::kMiB;
using probe::make_served_stream;
using probe::over;

constexpr uint64_t kSomeTimeNs = 300'000'000;
constexpr uint64_t kLongTimeNs = 2'000'000'000;

void free_behind_work_and_go_abroad(CUcontext context) {
  CUcontext elsewhere = nullptr;
  CUdeviceptr block = 0;
  CUdeviceptr there = 0;
  MUST(cuDevicePrimaryCtxRetain(&elsewhere, 1));
  MUST(cuCtxSetCurrent(elsewhere));
  CUstream stream_there = nullptr;
  MUST(cuStreamCreate(&stream_there, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAlloc(&there, kMiB));
  MUST(cuCtxSetCurrent(context));
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 8; ++i) {
    MUST(cuMemAlloc(&block, kMiB));
    if (i == 7) go_on_for(kLongTimeNs, stream);
    MUST(cuMemFree(block));
  }
  MUST(cuCtxSetCurrent(elsewhere));
  MUST(cuMemsetD8Async(there, 1, kMiB, stream_there));
  MUST(cuStreamSynchronize(stream_there));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  CUcontext context = nullptr;
  CUcontext second = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  const CUstream busy = make_served_stream();
  CUdeviceptr of_busy = 0;
  MUST(cuMemAllocAsync(&of_busy, 8 * kMiB, busy));
  MUST(cuStreamSynchronize(busy));
  CUdeviceptr small = 0;
  for (int i = 0; way == "chunk" && i < 40; ++i) {
    MUST(cuMemAlloc(&small, 4096));
    MUST(cuMemFree(small));
    usleep(3000);  // until the pools are there
  }
  if (way == "contexts") MUST(cuCtxCreate(&second, nullptr, 0, 0));
  const CUstream stream = make_served_stream();
  const CUstream third = make_served_stream();
  CUdeviceptr kept = 0;  // as much may lie idle as the program had at its peak
  CUdeviceptr blocks[4] = {};
  MUST(cuMemAllocAsync(&kept, 8 * kMiB, stream));
  for (CUdeviceptr& block : blocks) MUST(cuMemAllocAsync(&block, 40 * kMiB, stream));
  MUST(cuStreamSynchronize(stream));

  std::thread other;
  if (second != nullptr) MUST(cuCtxSetCurrent(context));
  if (way == "abroad") {
    other = std::thread(free_behind_work_and_go_abroad, context);
    usleep(200'000);  // it has come to its wait; if not, there is nothing to see
  } else {
    go_on_until_over(way == "copy" ? CU_STREAM_LEGACY : busy);
  }
  if (way == "copy") {
    other = std::thread([&] {
      char word[64] = {};
      MUST(cuCtxSetCurrent(context));
      MUST(cuMemcpyDtoH(word, of_busy, sizeof word));
    });
    usleep(100'000);
  } else if (way != "abroad") {
    MUST(cuMemFreeAsync(of_busy, busy));
  }
  if (second != nullptr) MUST(cuCtxSetCurrent(second));
  const bool later = way == "chunk" || way == "contexts";
  if (later) go_on_for(kSomeTimeNs, stream);
  for (CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, stream));
  if (!later) MUST(cuStreamSynchronize(stream));

  CUdeviceptr wanted = 0;
  const auto start = std::chrono::steady_clock::now();
  probe::say("allocated", cuMemAllocAsync(&wanted, (way == "gap" ? 170 : 120) * kMiB, third));
  const auto took = std::chrono::steady_clock::now() - start;
  // Out of memory, cupool waits for ten seconds; abroad, for the other thread's kernel.
  probe::say("at once", took < std::chrono::milliseconds(way == "abroad" ? 1200 : 5000));
  over = true;
  if (other.joinable()) other.join();
  MUST(cuCtxSynchronize());
  return 0;
}
