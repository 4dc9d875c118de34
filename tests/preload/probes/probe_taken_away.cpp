// SPDX-License-Identifier: Apache-2.0
// What a program takes away from kernels behind a free of something else: with the driver's free,
// all work is complete by then. Each line tells whether it is: access to mapped memory, a library
// with kernels. case=peers: another device's access to a pool, and a context's to another device.
// case=given: access that is given takes nothing away.
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

void take_from_peers(const Gpu& gpu) {
  CUcontext peer = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&peer, 1));
  MUST(cuCtxEnablePeerAccess(peer, 0));
  CUmemoryPool pool = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const auto set_access = [&] { MUST(cuMemPoolSetAccess(pool, &access, 1)); };
  std::printf("given complete=%d\n", is_complete_behind(gpu, set_access, kLongerNs));
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  std::printf("pool complete=%d\n", is_complete_behind(gpu, set_access));
  std::printf("device complete=%d\n",
              is_complete_behind(gpu, [&] { MUST(cuCtxDisablePeerAccess(peer)); }));
}

}  // namespace

int main(int argc, char** argv) {
  const Gpu gpu;
  probe::warm_up();
  if (probe::argument_is(argc, argv, "case", "peers")) {
    take_from_peers(gpu);
    return 0;
  }
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
