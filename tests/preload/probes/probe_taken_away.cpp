// SPDX-License-Identifier: Apache-2.0
// What a program takes away from kernels behind a free of something else: with the driver's free,
// all work is complete by then. Each line tells whether it is: access to mapped memory, a library
// with kernels. case=given: access that is given takes nothing away.
#include <cuda.h>

#include "probe.h"
#include "probe_gpu.h"

namespace {

using probe::Gpu;
using probe::kBytes;

constexpr std::size_t kGranule = 2 << 20;
constexpr std::uint64_t kLongNs = 20'000'000;
constexpr std::uint64_t kLongerNs = 500'000'000;  // than a thread is off its processor

// Whether the work before the free is complete once `call` has returned.
template <typename Call>
bool is_complete_behind(const Gpu& gpu, const Call& call, std::uint64_t kernel_ns = kLongNs) {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  gpu.work(kernel_ns);
  MUST(cuMemFree(block));
  call();
  const bool complete = cuStreamQuery(gpu.stream) == CUDA_SUCCESS;
  MUST(cuCtxSynchronize());
  return complete;
}

}  // namespace

int main(int argc, char** argv) {
  const Gpu gpu;
  probe::warm_up();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr mapped = 0;
  MUST(cuMemCreate(&handle, kGranule, &properties, 0));
  MUST(cuMemAddressReserve(&mapped, kGranule, 0, 0, 0));
  MUST(cuMemMap(mapped, kGranule, 0, handle, 0));
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const auto set_access = [&] { MUST(cuMemSetAccess(mapped, kGranule, &access, 1)); };
  if (probe::argument_is(argc, argv, "case", "given")) {
    std::printf("given complete=%d\n", is_complete_behind(gpu, set_access, kLongerNs));
    return 0;
  }
  set_access();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  std::printf("reading only complete=%d\n", is_complete_behind(gpu, set_access));
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  std::printf("no access complete=%d\n", is_complete_behind(gpu, set_access));
  CUlibrary library = nullptr;
  MUST(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0));
  std::printf("library complete=%d\n",
              is_complete_behind(gpu, [&] { MUST(cuLibraryUnload(library)); }));
  return 0;
}
