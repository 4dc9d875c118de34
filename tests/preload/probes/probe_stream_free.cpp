// SPDX-License-Identifier: Apache-2.0
// Memory of cudaMalloc that is freed in stream order (contract 12). mode=order: the stream is
// another context's, whose kernel has the memory before the free; the next owner's work must come
// after it (contract 2). devices=1: two contexts of one device; 2: the primary ones of two;
// captures=1: while a stream of the owner captures as well; fail=: faults in such a free.
// mode=count: blocks of before the pools, freed so, one in vain while the stream captures.
#include <cuda.h>

#include <string>
#include <vector>

#include "owner.h"
#include "probe.h"
#include "sim_control.h"

namespace {

constexpr uint64_t kWords = 1 << 18;

// How a stream of the other context is named in the free.
enum class Named { created, blocking, null_stream, legacy, per_thread };

struct Side {
  CUcontext context = nullptr;
  CUfunction stamp = nullptr;
  CUfunction spin = nullptr;
};

Side open(CUcontext context) {
  Side side;
  CUmodule module = nullptr;
  side.context = context;
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, "the simulated device knows kernels by name"));
  MUST(cuModuleGetFunction(&side.stamp, module, "stamp_u32"));
  MUST(cuModuleGetFunction(&side.spin, module, "spin_ns"));
  return side;
}

void stamp(const Side& side, CUdeviceptr block, uint32_t value, CUstream stream) {
  uint64_t words = kWords;
  void* arguments[] = {&block, &words, &value};
  MUST(cuLaunchKernel(side.stamp, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
}

CUdeviceptr allocate() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kWords * 4));
  probe::own(reinterpret_cast<void*>(block), kWords * 4);
  return block;
}

void disown(CUdeviceptr block) {
  probe::disown(reinterpret_cast<void*>(block), kWords * 4);
}

CUstream stream_of(Named named) {
  CUstream stream = nullptr;
  switch (named) {
    case Named::created:
      MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      return stream;
    case Named::blocking:
      MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
      return stream;
    case Named::null_stream:
      return nullptr;
    case Named::legacy:
      return CU_STREAM_LEGACY;
    case Named::per_thread:
      return CU_STREAM_PER_THREAD;
  }
  return stream;
}

// Memory of `owner`, used and freed by `user`, then the owner's again.
void hand_on(const Side& owner, const Side& user, Named named, bool capturing, const char* faults) {
  MUST(cuCtxSetCurrent(user.context));
  const CUstream foreign = stream_of(named);
  MUST(cuCtxSetCurrent(owner.context));
  CUstream own = nullptr;
  CUstream captured = nullptr;
  MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
  int wrong = 0;
  for (int i = 0; i < 4; ++i) {
    MUST(cuCtxSetCurrent(owner.context));
    const CUdeviceptr block = allocate();
    MUST(cuCtxSetCurrent(user.context));
    uint64_t ns = 20000000;
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(user.spin, 1, 1, 1, 1, 1, 1, 0, foreign, arguments, nullptr));
    stamp(user, block, 0x11111111, foreign);
    disown(block);
    probe::inject(faults);
    const CUresult freed = cuMemFreeAsync(block, foreign);
    probe::inject("");
    MUST(freed);
    MUST(cuCtxSetCurrent(owner.context));
    // Says nothing of the other context.
    MUST(cuCtxSynchronize());
    MUST(cuStreamSynchronize(CU_STREAM_LEGACY));
    const CUdeviceptr next = allocate();
    stamp(owner, next, 0x22222222, own);
    MUST(cuStreamSynchronize(own));
    MUST(cuCtxSetCurrent(user.context));
    MUST(cuCtxSynchronize());
    MUST(cuCtxSetCurrent(owner.context));
    std::vector<unsigned char> host(kWords * 4);
    MUST(cuMemcpyDtoH(host.data(), next, host.size()));
    if (probe::count_other_bytes(host.data(), host.size(), 0x22) != 0) ++wrong;
    disown(next);
    MUST(cuMemFree(next));
    if (!capturing) continue;
    // Neither does a capture of the owner's mind such a free.
    const CUdeviceptr third = allocate();
    disown(third);
    CUgraph graph = nullptr;
    MUST(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuCtxSetCurrent(user.context));
    MUST(cuMemFreeAsync(third, foreign));
    MUST(cuCtxSetCurrent(owner.context));
    MUST(cuStreamEndCapture(captured, &graph));
    MUST(cuGraphDestroy(graph));
  }
  std::printf("stream %d: wrong %d\n", static_cast<int>(named), wrong);
  MUST(cuStreamDestroy(own));
  MUST(cuStreamDestroy(captured));
  MUST(cuCtxSetCurrent(user.context));
  if (named == Named::created || named == Named::blocking) MUST(cuStreamDestroy(foreign));
}

void order(int devices, bool capturing, const char* faults) {
  CUcontext one = nullptr;
  CUcontext two = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&one, 0));
  MUST(cuCtxSetCurrent(one));
  if (devices == 2) {
    MUST(cuDevicePrimaryCtxRetain(&two, 1));
  } else {
    CUctxCreateParams parameters{};
    MUST(cuCtxCreate(&two, &parameters, 0, 0));
  }
  const Side owner = open(one);
  const Side user = open(two);
  if (devices == 2) MUST(cuCtxEnablePeerAccess(one, 0));
  for (const Named named :
       {Named::created, Named::blocking, Named::null_stream, Named::legacy, Named::per_thread}) {
    hand_on(owner, user, named, capturing, faults);
  }
}

void count() {
  CUcontext context = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<CUdeviceptr> blocks(8);
  for (CUdeviceptr& block : blocks) MUST(cuMemAlloc(&block, 1 << 20));
  CUgraph graph = nullptr;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  std::printf("in a capture: %d\n", static_cast<int>(cuMemFreeAsync(blocks[0], stream)));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphDestroy(graph));
  using FreeAsync = CUresult (*)(CUdeviceptr, CUstream);
  const auto free_per_thread = probe::sim_control<FreeAsync>("cuMemFreeAsync_ptsz");
  for (size_t i = 0; i < blocks.size(); ++i) {
    const CUstream where = i % 4 < 2 ? stream : nullptr;
    MUST(i % 2 == 0 ? cuMemFreeAsync(blocks[i], where) : free_per_thread(blocks[i], where));
  }
  MUST(cuCtxSynchronize());
  probe::print_counts(blocks.size(), blocks.size() + 1);  // the refused call is one as well
}

}  // namespace

int main(int argc, char** argv) {
  MUST(cuInit(0));
  if (probe::argument_is(argc, argv, "mode", "count")) {
    count();
  } else {
    order(static_cast<int>(probe::number(argc, argv, "devices", 1)),
          probe::argument_is(argc, argv, "captures", "1"), probe::argument(argc, argv, "fail", ""));
  }
  return 0;
}
