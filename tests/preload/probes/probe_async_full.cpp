// SPDX-License-Identifier: Apache-2.0
// What the program has freed is wanted, for a larger block. The device has 256 MiB. But for the
// last two cases, it was freed in a stream, and work goes on that waits for what the program does
// next, or for longest=SECONDS; the driver alone has the memory at once.
//   case=own        by that stream, whose work it is
//   case=beside     by that stream, behind a wait for it; the work is another's
//   case=elsewhere  by a third stream (by=async), cuMemAlloc (by=malloc), cuMemGetInfo (by=info),
//   or
//                   the program's trim (by=trim); likewise
//   case=gone       as elsewhere, but the stream is destroyed after the wait for it
//   case=later      by a third stream, while the stream still has work that takes some time; as one
//                   block (by=async), or as blocks of the same size (by=blocks)
//   case=gone_later likewise, but the stream is destroyed
//   case=captured   as elsewhere, while another stream captures, before which the stream was done
//   case=ended      after the context's end (end=reset, release), beside another context
//                   (end=other), or after cupool has stopped serving (end=managed, setpool)
//   case=plain      by cuMemAlloc, freed by cuMemFree and waited for
//   case=waits      by cuMemAlloc, freed by cuMemFree behind work of a second, while another thread
//                   frees small blocks in stream order and is done with them
#include <cuda.h>
#include <cupool_sim.h>
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

constexpr size_t kBlock = 40 * kMiB;
constexpr size_t kWanted = 120 * kMiB;       // more than is free beside four blocks
constexpr size_t kWantedLater = 200 * kMiB;  // more than is free beside two

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// By what it is wanted for. Returns the memory, or null for what only asks.
CUdeviceptr want(const std::string& by, CUstream stream, size_t bytes = kWanted) {
  CUdeviceptr wanted = 0;
  if (by == "async") probe::say("allocated", cuMemAllocAsync(&wanted, bytes, stream));
  if (by == "malloc") probe::say("allocated", cuMemAlloc(&wanted, bytes));
  // The second one finds no room.
  for (int i = 0; by == "blocks" && i < 3; ++i) {
    MUST(cuMemAllocAsync(&wanted, kBlock, stream));
    cupoolSimOwner(pointer(wanted), kBlock, 100 + i);
    MUST(cuMemsetD8Async(wanted, 1, 4096, stream));
    if (i == 2) probe::say("allocated", 0);
  }
  if (by == "blocks") return 0;  // the end of the context frees them
  if (by == "trim") {
    CUmemoryPool pool = nullptr;
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuMemPoolTrimTo(pool, 0));
    uint64_t reserved = 0;
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    probe::say("allocated", reserved > bytes);
  }
  if (by == "info") {
    size_t total = 0;
    size_t free = 0;
    MUST(cuMemGetInfo(&free, &total));
    probe::say("allocated", free < bytes);
  }
  return wanted;
}

// What the stream had used is idle by then, and its work complete.
void end(const std::string& how, CUcontext context) {
  if (how == "reset") MUST(cuDevicePrimaryCtxReset(0));
  if (how == "release") MUST(cuDevicePrimaryCtxRelease(0));
  if (how == "reset" || how == "release") {
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
  }
  if (how == "other") {
    CUcontext other = nullptr;
    MUST(cuCtxCreate(&other, nullptr, 0, 0));
    MUST(cuDevicePrimaryCtxRelease(0));
  }
  CUdeviceptr managed = 0;
  if (how == "managed") MUST(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  if (how == "setpool") {
    CUmemoryPool pool = nullptr;
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cuMemPoolCreate(&pool, &properties));
    MUST(cuDeviceSetMemPool(0, pool));
  }
}

void want_after_the_end(const std::string& how, const std::string& by, CUcontext context,
                        CUstream stream) {
  for (int round = 0; round < 2; ++round) {
    CUdeviceptr blocks[4] = {};
    for (CUdeviceptr& block : blocks) MUST(cuMemAllocAsync(&block, kBlock, stream));
    for (CUdeviceptr block : blocks) MUST(cuMemsetD8Async(block, 1, 4096, stream));
    for (CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, stream));
  }
  MUST(cuStreamSynchronize(stream));
  end(how, context);
  want(by, nullptr, kWantedLater);
}

// Each free of the other thread's could end the wait. There are more of them than attempts.
void wait_beside_small_frees(CUcontext context, CUstream busy) {
  constexpr size_t kLarge = 150 * kMiB;
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kLarge));
  const CUstream streams[] = {make_served_stream(), make_served_stream()};
  go_on_for(1'000'000'000, busy);
  std::thread other([&] {
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; !over; ++i) {
      CUdeviceptr small[4] = {};
      for (CUdeviceptr& each : small) MUST(cuMemAllocAsync(&each, 4096, streams[i % 2]));
      for (CUdeviceptr each : small) MUST(cuMemsetD8Async(each, 1, 4096, streams[i % 2]));
      for (CUdeviceptr each : small) MUST(cuMemFreeAsync(each, streams[i % 2]));
      usleep(4000);
    }
  });
  MUST(cuMemFree(block));
  probe::say("allocated", cuMemAlloc(&block, kLarge + 50 * kMiB));
  over = true;
  other.join();
  MUST(cuCtxSynchronize());
}

}  // namespace

int main(int argc, char** argv) {
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  const CUstream stream = make_served_stream();
  const CUstream other = make_served_stream();
  const CUstream third = make_served_stream();
  const std::string which = probe::argument(argc, argv, "case", "own");
  const std::string by = probe::argument(argc, argv, "by", "async");
  probe::longest = std::chrono::seconds(probe::number(argc, argv, "longest", 86400));
  if (which == "waits") {
    wait_beside_small_frees(context, stream);
    return 0;
  }
  if (which == "ended") {
    want_after_the_end(probe::argument(argc, argv, "end", "reset"), by, context, stream);
    return 0;
  }
  const bool own = which == "own";
  const bool captured = which == "captured";
  CUdeviceptr kept = 0;  // as much may lie idle as the program had at its peak
  CUdeviceptr blocks[4] = {};
  MUST(cuMemAllocAsync(&kept, 8 * kMiB, stream));
  unsigned long long owner = 0;
  const bool plain = which == "plain";
  for (CUdeviceptr& block : blocks) {
    MUST(plain ? cuMemAlloc(&block, kBlock) : cuMemAllocAsync(&block, kBlock, stream));
    cupoolSimOwner(pointer(block), kBlock, ++owner);
  }
  if (!plain && !captured) go_on_until_over(own ? stream : other);
  for (CUdeviceptr block : blocks) {
    MUST(cuMemsetD8Async(block, 1, 4096, stream));
    cupoolSimOwner(pointer(block), kBlock, 0);
    MUST(plain ? cuMemFree(block) : cuMemFreeAsync(block, stream));
  }
  if (plain) {
    MUST(cuCtxSynchronize());
    go_on_until_over(other);
  }
  const bool works_on = which == "later" || which == "gone_later";
  if (works_on) go_on_for(300'000'000, stream);
  if (!works_on && !own) MUST(cuStreamSynchronize(stream));
  if (which == "gone" || which == "gone_later") MUST(cuStreamDestroy(stream));
  CUstream capturing = nullptr;
  CUgraph graph = nullptr;
  if (captured) {
    MUST(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
    go_on_until_over(other);
  }
  const auto start = std::chrono::steady_clock::now();
  const CUstream wants = own || which == "beside" ? stream : third;
  const CUdeviceptr wanted = want(by, wants);
  // Out of memory, cupool waits for ten seconds.
  probe::say("at once", std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  if (wanted != 0) {
    cupoolSimOwner(pointer(wanted), kWanted, ++owner);
    MUST(cuMemsetD8Async(wanted, 1, 4096, wants));
  }
  over = true;
  if (captured) {
    MUST(cuStreamEndCapture(capturing, &graph));
    MUST(cuGraphDestroy(graph));
  }
  MUST(cuCtxSynchronize());
  MUST(cuMemFree(kept));
  if (wanted != 0) MUST(cuMemFree(wanted));
  MUST(cuDevicePrimaryCtxRelease(0));
  return 0;
}
