// SPDX-License-Identifier: Apache-2.0
// The driver-interface work; see driver_work.h. Uses the test kernels stamp_u32 and check_u32,
// which the simulated device knows by name and a real one loads from CUPOOL_TEST_MODULE.
#include "driver_work.h"

#include <fstream>
#include <iterator>
#include <string>

#include "owner.h"
#include "probe.h"

namespace {

constexpr uint64_t kWords[] = {1, 128, 1000, 16384, 300000, 1 << 19, (1 << 20) + 3};
constexpr int kWordsCount = static_cast<int>(sizeof(kWords) / sizeof(kWords[0]));

std::string module_image() {
  const char* path = std::getenv("CUPOOL_TEST_MODULE");
  if (path == nullptr) return std::string("no image: the simulated device knows kernels by name");
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct Kernels {
  CUmodule module = nullptr;
  CUfunction stamp = nullptr;
  CUfunction check = nullptr;
};

void launch_stamp(const DriverFunctions& driver, const Kernels& kernels, CUstream stream,
                  CUdeviceptr words, uint64_t count, uint32_t value) {
  void* arguments[] = {&words, &count, &value};
  MUST(driver.cuLaunchKernel_fn(kernels.stamp, 64, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
}

void launch_check(const DriverFunctions& driver, const Kernels& kernels, CUstream stream,
                  CUdeviceptr words, uint64_t count, uint32_t value, CUdeviceptr mismatches) {
  void* arguments[] = {&words, &count, &value, &mismatches};
  MUST(driver.cuLaunchKernel_fn(kernels.check, 64, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace

DriverCounts run_driver_work(const DriverFunctions& driver, int iterations) {
  DriverCounts counts;
  CUdevice device = 0;
  CUcontext context = nullptr;
  MUST(driver.cuInit_fn(0));
  MUST(driver.cuDeviceGet_fn(&device, 0));
  MUST(driver.cuDevicePrimaryCtxRetain_fn(&context, device));
  MUST(driver.cuCtxSetCurrent_fn(context));

  Kernels kernels;
  const std::string image = module_image();
  MUST(driver.cuModuleLoadData_fn(&kernels.module, image.data()));
  MUST(driver.cuModuleGetFunction_fn(&kernels.stamp, kernels.module, "stamp_u32"));
  MUST(driver.cuModuleGetFunction_fn(&kernels.check, kernels.module, "check_u32"));

  CUstream streams[2] = {};
  MUST(driver.cuStreamCreate_fn(&streams[0], CU_STREAM_NON_BLOCKING));
  MUST(driver.cuStreamCreate_fn(&streams[1], CU_STREAM_DEFAULT));

  CUdeviceptr mismatches = 0;
  MUST(driver.cuMemAlloc_fn(&mismatches, sizeof(uint64_t)));
  MUST(driver.cuMemsetD8_fn(mismatches, 0, sizeof(uint64_t)));
  MUST(driver.cuCtxSynchronize_fn());
  ++counts.mallocs;

  for (int i = 0; i < iterations; ++i) {
    const uint64_t words = kWords[i % kWordsCount];
    const uint32_t value = 0x51000000u + static_cast<uint32_t>(i);
    const CUstream stream = streams[i % 2];
    CUdeviceptr block = 0;
    MUST(driver.cuMemAlloc_fn(&block, words * sizeof(uint32_t)));
    ++counts.mallocs;
    const void* as_pointer = reinterpret_cast<const void*>(block);
    probe::own(as_pointer, words * sizeof(uint32_t));
    CUdeviceptr base = 0;
    size_t size = 0;
    MUST(driver.cuMemGetAddressRange_fn(&base, &size, block));
    CHECK(base == block && size == words * sizeof(uint32_t));  // contract 6
    launch_stamp(driver, kernels, stream, block, words, value);
    launch_check(driver, kernels, stream, block, words, value, mismatches);
    launch_stamp(driver, kernels, stream, block, words, 0xDEADBEEFu);  // pending at free
    probe::disown(as_pointer, words * sizeof(uint32_t));
    MUST(driver.cuMemFree_fn(block));
    ++counts.frees;
  }

  size_t pitch = 0;
  CUdeviceptr image2d = 0;
  MUST(driver.cuMemAllocPitch_fn(&image2d, &pitch, 1000, 16, 4));
  ++counts.mallocs;
  std::printf("pitch=%zu\n", pitch);
  MUST(driver.cuMemFree_fn(image2d));
  ++counts.frees;

  MUST(driver.cuStreamSynchronize_fn(streams[0]));
  MUST(driver.cuStreamSynchronize_fn(streams[1]));
  MUST(driver.cuMemcpyDtoH_fn(&counts.wrong_words, mismatches, sizeof(uint64_t)));
  MUST(driver.cuMemFree_fn(mismatches));
  ++counts.frees;
  MUST(driver.cuStreamDestroy_fn(streams[0]));
  MUST(driver.cuStreamDestroy_fn(streams[1]));
  MUST(driver.cuModuleUnload_fn(kernels.module));
  MUST(driver.cuDevicePrimaryCtxRelease_fn(device));
  return counts;
}

int report_driver_work(const DriverCounts& counts) {
  std::printf("wrong_words=%" PRIu64 "\n", counts.wrong_words);
  probe::print_counts(counts.mallocs, counts.frees);
  return counts.wrong_words == 0 ? 0 : probe::kWrongResult;
}
