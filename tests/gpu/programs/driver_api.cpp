// SPDX-License-Identifier: Apache-2.0
// A driver-interface program, linked to libcuda.so.1, with a module loaded from CUPOOL_TEST_MODULE:
// allocate, stamp, check, stamp again, free while that is pending. Arguments: iterations=N
#include <cuda.h>

#include <fstream>
#include <iterator>
#include <string>

#include "common/gpu_test.h"

namespace {

constexpr uint64_t kWords[] = {1, 128, 1000, 16384, 300000, 1 << 19, (1 << 20) + 3};
constexpr int kWordsCount = static_cast<int>(sizeof(kWords) / sizeof(kWords[0]));

uint64_t mallocs = 0;
uint64_t frees = 0;

CUdeviceptr allocate(uint64_t bytes) {
  CUdeviceptr p = 0;
  MUST(cuMemAlloc(&p, bytes));
  ++mallocs;
  return p;
}

void release(CUdeviceptr p) {
  MUST(cuMemFree(p));
  ++frees;
}

void launch(CUfunction kernel, CUstream stream, void** arguments) {
  MUST(cuLaunchKernel(kernel, 256, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
}

std::string module_image() {
  const char* path = std::getenv("CUPOOL_TEST_MODULE");
  if (path == nullptr) {
    std::fprintf(stderr, "CUPOOL_TEST_MODULE must name the module of kernels.cu\n");
    std::exit(2);
  }
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int argc, char** argv) {
  const int iterations = static_cast<int>(gpu_test::number(argc, argv, "iterations", 3000));
  CUdevice device = 0;
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  CUmodule module = nullptr;
  CUfunction stamp = nullptr;
  CUfunction check = nullptr;
  const std::string image = module_image();
  MUST(cuModuleLoadData(&module, image.data()));
  MUST(cuModuleGetFunction(&stamp, module, "stamp_u32"));
  MUST(cuModuleGetFunction(&check, module, "check_u32"));
  CUstream streams[3] = {};
  MUST(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&streams[1], CU_STREAM_DEFAULT));  // the third is the legacy stream

  CUdeviceptr mismatches = allocate(sizeof(uint64_t));
  MUST(cuMemsetD8(mismatches, 0, sizeof(uint64_t)));
  MUST(cuCtxSynchronize());

  const auto begin = gpu_test::Clock::now();
  for (int i = 0; i < iterations; ++i) {
    uint64_t count = kWords[i % kWordsCount];
    uint32_t value = 0x51000000u + static_cast<uint32_t>(i);
    uint32_t late = 0xDEADBEEFu;
    CUdeviceptr block = allocate(count * sizeof(uint32_t));
    void* stamp_arguments[] = {&block, &count, &value};
    void* check_arguments[] = {&block, &count, &value, &mismatches};
    void* late_arguments[] = {&block, &count, &late};
    const CUstream stream = streams[i % 3];
    launch(stamp, stream, stamp_arguments);
    launch(check, stream, check_arguments);
    launch(stamp, stream, late_arguments);
    release(block);
  }
  MUST(cuCtxSynchronize());
  const double seconds = gpu_test::seconds_since(begin);
  uint64_t wrong = 0;
  MUST(cuMemcpyDtoH(&wrong, mismatches, sizeof(wrong)));
  release(mismatches);
  MUST(cuModuleUnload(module));
  MUST(cuDevicePrimaryCtxRelease(device));
  std::printf("result wrong_words=%" PRIu64 "\n", wrong);
  gpu_test::print_counts(mallocs, frees);
  std::printf("time us_per_iteration=%.4f\n", seconds * 1e6 / iterations);
  return wrong == 0 ? 0 : 3;
}
