// SPDX-License-Identifier: Apache-2.0
// Memory of several devices (contract 7): copies both ways by every call, without and with peer
// access, kernels with it; frees of another device's memory and without a current context.
// order= before (the second device's context is made before the first pool), after, later (a pool
// is made after it); api= runtime, driver; peer=1; mode= copies, pressure.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "probe.h"

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kSizes[] = {1000, 3 * kMiB};

CUdeviceptr device_address(const void* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

// One device's part, with the interface that the program uses.
struct Side {
  int device = 0;
  CUcontext context = nullptr;
  cudaStream_t stream = nullptr;
  void* block[2] = {};  // small, large
};

bool driver_interface = false;

void use(const Side& side) {
  if (driver_interface) {
    MUST(cuCtxSetCurrent(side.context));
  } else {
    MUST(cudaSetDevice(side.device));
  }
}

void open_context(Side* side) {
  if (driver_interface) {
    CUctxCreateParams parameters{};
    MUST(cuInit(0));
    MUST(cuCtxCreate(&side->context, &parameters, 0, side->device));
    return;
  }
  MUST(cudaSetDevice(side->device));
  MUST(cudaFree(nullptr));
  MUST(cuCtxGetCurrent(&side->context));
}

void allocate(Side* side, int which) {
  use(*side);
  CUdeviceptr address = 0;
  if (driver_interface) {
    MUST(cuMemAlloc(&address, kSizes[which]));
    side->block[which] = reinterpret_cast<void*>(address);
  } else {
    MUST(cudaMalloc(&side->block[which], kSizes[which]));
  }
  int ordinal = -1;
  address = device_address(side->block[which]);
  MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  CHECK(ordinal == side->device);
}

uint64_t wrong_bytes(const Side& side, int which, int value) {
  use(side);
  std::vector<unsigned char> host(kSizes[which]);
  MUST(cuMemcpyDtoH(host.data(), device_address(side.block[which]), host.size()));
  return probe::count_other_bytes(host.data(), host.size(), value);
}

constexpr int kWays = 6;

// By call number `way`; the ways that need a stream wait for it.
int copy(int way, const Side& to, const Side& from, int which) {
  const size_t size = kSizes[which];
  const CUdeviceptr target = device_address(to.block[which]);
  const CUdeviceptr source = device_address(from.block[which]);
  const Side& home = way % 2 == 0 ? to : from;
  use(home);
  int code = 0;
  switch (way) {
    case 0:
      code = driver_interface
                 ? static_cast<int>(cuMemcpyPeer(target, to.context, source, from.context, size))
                 : static_cast<int>(cudaMemcpyPeer(to.block[which], to.device, from.block[which],
                                                   from.device, size));
      break;
    case 1:
    case 2:
      code =
          driver_interface
              ? static_cast<int>(
                    cuMemcpyPeerAsync(target, to.context, source, from.context, size, home.stream))
              : static_cast<int>(cudaMemcpyPeerAsync(to.block[which], to.device, from.block[which],
                                                     from.device, size, home.stream));
      break;
    case 3:
    case 4:
      code = driver_interface
                 ? static_cast<int>(cuMemcpyAsync(target, source, size, home.stream))
                 : static_cast<int>(cudaMemcpyAsync(to.block[which], from.block[which], size,
                                                    cudaMemcpyDefault, home.stream));
      break;
    default:
      code = driver_interface ? static_cast<int>(cuMemcpyDtoD(target, source, size))
                              : static_cast<int>(cudaMemcpy(to.block[which], from.block[which],
                                                            size, cudaMemcpyDefault));
  }
  MUST(cuStreamSynchronize(home.stream));
  MUST(cuCtxSynchronize());
  return code;
}

void copies(const Side& to, const Side& from) {
  for (int which = 0; which < 2; ++which) {
    for (int way = 0; way < kWays; ++way) {
      const int value = 16 + way * 2 + which;
      use(from);
      MUST(cuMemsetD8(device_address(from.block[which]), static_cast<unsigned char>(value),
                      kSizes[which]));
      MUST(cuCtxSynchronize());
      use(to);
      MUST(cuMemsetD8(device_address(to.block[which]), 1, kSizes[which]));
      MUST(cuCtxSynchronize());
      const int code = copy(way, to, from, which);
      std::printf("%d to %d, way %d, size %zu: %d, wrong bytes %d\n", from.device, to.device, way,
                  kSizes[which], code, static_cast<int>(wrong_bytes(to, which, value)));
    }
  }
}

// A kernel of one device writes the other's memory: allowed from cudaDeviceEnablePeerAccess on.
void kernel(const Side& owner, const Side& runner) {
  use(runner);
  if (driver_interface) {
    MUST(cuCtxEnablePeerAccess(owner.context, 0));
  } else {
    MUST(cudaDeviceEnablePeerAccess(owner.device, 0));
  }
  CUmodule module = nullptr;
  CUfunction stamp = nullptr;
  MUST(cuModuleLoadData(&module, "the simulated device knows kernels by name"));
  MUST(cuModuleGetFunction(&stamp, module, "stamp_u32"));
  for (int which = 0; which < 2; ++which) {
    CUdeviceptr words = device_address(owner.block[which]);
    uint64_t count = kSizes[which] / 4;
    uint32_t value = 0x37373737;
    void* arguments[] = {&words, &count, &value};
    MUST(cuLaunchKernel(stamp, 4, 1, 1, 256, 1, 1, 0, runner.stream, arguments, nullptr));
    MUST(cuStreamSynchronize(runner.stream));
    std::printf("kernel of %d in memory of %d: wrong bytes %d\n", runner.device, owner.device,
                static_cast<int>(wrong_bytes(owner, which, 0x37)));
    use(runner);
  }
  MUST(cuModuleUnload(module));
}

void free_block(const Side& current, void* p) {
  use(current);
  if (driver_interface) {
    MUST(cuMemFree(device_address(p)));
  } else {
    MUST(cudaFree(p));
  }
}

void frees(Side* a, Side* b) {
  free_block(*b, a->block[0]);  // another device's
  free_block(*a, b->block[0]);
  allocate(a, 0);  // each device's memory comes back to it
  allocate(b, 0);
  free_block(*a, a->block[0]);
  free_block(*b, b->block[0]);
  // Without a current context: the runtime makes one current, the driver answers what it answers.
  MUST(cuCtxSetCurrent(nullptr));
  const int code = driver_interface ? static_cast<int>(cuMemFree(device_address(a->block[1])))
                                    : static_cast<int>(cudaFree(a->block[1]));
  std::printf("free without a context: %d\n", code);
  if (code != 0) free_block(*a, a->block[1]);
  free_block(*b, b->block[1]);
}

void all_copies(const std::string& order, bool peer) {
  Side a;
  Side b;
  b.device = 1;
  open_context(&a);
  if (order == "before") open_context(&b);
  allocate(&a, 0);
  if (order != "later") allocate(&a, 1);
  if (order != "before") open_context(&b);
  allocate(&b, 0);
  allocate(&b, 1);
  if (order == "later") allocate(&a, 1);
  for (Side* side : {&a, &b}) {
    use(*side);
    MUST(cuStreamCreate(&side->stream, CU_STREAM_NON_BLOCKING));
  }
  if (peer) {
    kernel(a, b);
    kernel(b, a);
  }
  copies(a, b);
  copies(b, a);
  frees(&a, &b);
}

std::vector<void*> fill() {
  std::vector<void*> blocks;
  void* p = nullptr;
  while (cudaMalloc(&p, 16 * kMiB) == cudaSuccess) blocks.push_back(p);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  return blocks;
}

void fill_and_free(int device) {
  MUST(cudaSetDevice(device));
  for (void* p : fill()) MUST(cudaFree(p));
}

// Memory of one device that lies idle, needed by a call made while the other is current (contract
// 4).
void pressure() {
  size_t available = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&available, &total));
  const size_t bytes = total * 3 / 4 / (2 * kMiB) * (2 * kMiB);
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  MUST(cudaSetDevice(1));
  MUST(cudaStreamCreate(&stream));
  MUST(cudaDeviceGetDefaultMemPool(&pool, 1));

  fill_and_free(1);
  MUST(cudaSetDevice(0));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 1;
  CUmemGenericAllocationHandle handle = 0;
  int code = static_cast<int>(cuMemCreate(&handle, bytes, &properties, 0));
  std::printf("physical memory of the other device: %d\n", code);
  if (code == 0) MUST(cuMemRelease(handle));

  fill_and_free(1);
  MUST(cudaSetDevice(0));
  void* p = nullptr;
  code = static_cast<int>(cudaMallocFromPoolAsync(&p, bytes, pool, stream));
  std::printf("from a pool of the other device: %d\n", code);
  if (code == 0) MUST(cudaFreeAsync(p, stream));
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaMemPoolTrimTo(pool, 0));

  fill_and_free(1);
  MUST(cudaSetDevice(0));
  CUcontext context = nullptr;
  code = static_cast<int>(cuDevicePrimaryCtxRetain(&context, 1));
  std::printf("the other device's context: %d\n", code);
}

}  // namespace

int main(int argc, char** argv) {
  driver_interface = probe::argument_is(argc, argv, "api", "driver");
  if (probe::argument_is(argc, argv, "mode", "pressure")) {
    pressure();
  } else {
    all_copies(probe::argument(argc, argv, "order", "before"),
               probe::argument_is(argc, argv, "peer", "1"));
  }
  return 0;
}
