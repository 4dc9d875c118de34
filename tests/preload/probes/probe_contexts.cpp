// Several contexts, their end, device reset, and allocation afterwards (contract 10).
// mode= reset (cudaDeviceReset twice), contexts (two cuCtxCreate), primary (release the last).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "probe.h"
#include "runtime_work.h"

namespace {

WorkCounts reset_twice() {
  WorkCounts total;
  for (int round = 0; round < 3; ++round) {
    total.add(run_runtime_work(12, round % 2));
    void* lost = nullptr;
    MUST(cudaMalloc(&lost, 1 << 20));  // never freed: goes with the reset
    ++total.mallocs;
    size_t before = 0;
    size_t after = 0;
    size_t all = 0;
    MUST(cudaMemGetInfo(&before, &all));
    MUST(cudaDeviceReset());
    MUST(cudaMemGetInfo(&after, &all));
    std::printf("round %d: memory came back %d\n", round, after >= before + (1 << 20));
    std::printf("free of a lost pointer: %d\n", static_cast<int>(cudaFree(lost)));
    cudaGetLastError();
  }
  return total;
}

struct OwnContext {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr kept = 0;
};

OwnContext open_context(CUdevice device) {
  OwnContext own;
  CUctxCreateParams params{};
  MUST(cuCtxCreate(&own.context, &params, 0, device));
  MUST(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
  return own;
}

void use_context(const OwnContext& own, int value, WorkCounts* counts) {
  MUST(cuCtxSetCurrent(own.context));
  for (int i = 0; i < 10; ++i) {
    const size_t size = size_t{1000} << i;
    CUdeviceptr p = 0;
    MUST(cuMemAlloc(&p, size));
    CUcontext of_pointer = nullptr;
    MUST(cuPointerGetAttribute(&of_pointer, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    CHECK(of_pointer == own.context);  // contract 6: not null, and the right one
    MUST(cuMemsetD8Async(p, static_cast<unsigned char>(value), size, own.stream));
    std::vector<unsigned char> host(size);
    MUST(cuMemcpyDtoHAsync(host.data(), p, size, own.stream));
    MUST(cuStreamSynchronize(own.stream));
    counts->wrong_bytes += probe::count_other_bytes(host.data(), size, value);
    MUST(cuMemsetD8Async(p, 0xEE, size, own.stream));
    MUST(cuMemFree(p));
    ++counts->mallocs;
    ++counts->frees;
  }
}

WorkCounts two_contexts() {
  WorkCounts counts;
  CUdevice device = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  for (int round = 0; round < 3; ++round) {
    OwnContext a = open_context(device);
    OwnContext b = open_context(device);
    for (int i = 0; i < 2; ++i) {
      use_context(a, 0x11 + round, &counts);
      use_context(b, 0x77 + round, &counts);
    }
    MUST(cuCtxSetCurrent(a.context));
    MUST(cuMemAlloc(&a.kept, 1 << 20));
    ++counts.mallocs;
    // Freed while the other context is current: legal, and a's memory must not serve b.
    MUST(cuCtxSetCurrent(b.context));
    MUST(cuMemFree(a.kept));
    ++counts.frees;
    MUST(cuCtxSetCurrent(a.context));
    MUST(cuMemAlloc(&a.kept, 1 << 20));  // lost with its context
    ++counts.mallocs;
    MUST(cuCtxDestroy(a.context));
    use_context(b, 0x33, &counts);
    MUST(cuCtxDestroy(b.context));
    std::printf("round %d done\n", round);
  }
  return counts;
}

WorkCounts primary_released() {
  WorkCounts counts;
  CUdevice device = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  for (int round = 0; round < 3; ++round) {
    OwnContext own;
    MUST(cuDevicePrimaryCtxRetain(&own.context, device));
    MUST(cuCtxSetCurrent(own.context));
    MUST(cuStreamCreate(&own.stream, CU_STREAM_DEFAULT));
    use_context(own, 0x44 + round, &counts);
    MUST(cuCtxSetCurrent(nullptr));
    MUST(cuDevicePrimaryCtxRelease(device));  // the last reference: the context's state goes
    unsigned int flags = 0;
    int active = -1;
    MUST(cuDevicePrimaryCtxGetState(device, &flags, &active));
    std::printf("round %d: active after release %d\n", round, active);
  }
  return counts;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "reset");
  WorkCounts counts;
  if (mode == "reset") counts = reset_twice();
  if (mode == "contexts") counts = two_contexts();
  if (mode == "primary") counts = primary_released();
  std::printf("wrong_bytes=%" PRIu64 "\n", counts.wrong_bytes);
  probe::print_counts(counts.mallocs, counts.frees);
  return counts.wrong_bytes == 0 ? 0 : probe::kWrongResult;
}
