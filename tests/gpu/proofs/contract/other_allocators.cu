// SPDX-License-Identifier: Apache-2.0
// The other allocators of a program that had taken all memory by cudaMalloc and freed it: they must
// find it (contract 4). other_allocators GROUP, 0 to 3; before each allocator memory is filled
// anew.
#include <cuda.h>
#include <cuda_runtime.h>

#include "common/kernels.cuh"
#include "contract.h"

// 48 KiB of local memory for each thread: the driver keeps it for every thread that fits the
// device.
__global__ void deep(uint32_t* out, uint32_t seed) {
  volatile uint32_t frame[12 << 10];
  for (uint32_t i = 0; i < 12 << 10; ++i) frame[i] = seed + i;
  uint32_t sum = 0;
  for (uint32_t i = threadIdx.x; i < 12 << 10; i += 64) sum += frame[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

namespace {

using contract::kGiB;
using contract::kMiB;

// A share of the device, so that small devices and the simulated one can be asked as well.
size_t share = 0;
size_t available = 0;

void fill_and_free() {
  std::vector<void*> blocks;
  for (const size_t bytes : {kGiB, 32 * kMiB, kMiB}) {
    void* block = nullptr;
    while (cudaMalloc(&block, bytes) == cudaSuccess) blocks.push_back(block);
    MUST(cudaGetLastError() == cudaErrorMemoryAllocation ? 0 : 1);
  }
  for (void* block : blocks) MUST(cudaFree(block));
}

bool holds(const void* words, uint64_t count, uint32_t value) {
  uint32_t ends[2] = {};
  const uint32_t* begin = static_cast<const uint32_t*>(words);
  if (cudaMemcpy(&ends[0], begin, 4, cudaMemcpyDefault) != 0) return false;
  if (cudaMemcpy(&ends[1], begin + count - 1, 4, cudaMemcpyDefault) != 0) return false;
  return ends[0] == value && ends[1] == value;
}

// Stamps device memory of any kind, sees the first and the last word.
int use(void* memory, size_t bytes, uint32_t value, cudaStream_t stream = nullptr) {
  stamp_u32<<<256, 256, 0, stream>>>(static_cast<uint32_t*>(memory), bytes / 4, value);
  int code = cudaGetLastError();
  if (code == 0) code = cudaStreamSynchronize(stream);
  if (code == 0 && !holds(memory, bytes / 4, value)) code = -1;
  return code;
}

int plain() {
  void* block = nullptr;
  const size_t bytes = available / 4 * 3;
  int code = cudaMalloc(&block, bytes);
  if (code == 0) code = use(block, bytes, 0xA1u);
  if (block != nullptr) MUST(cudaFree(block));
  return code;
}

int managed() {
  void* memory = nullptr;
  int code = cudaMallocManaged(&memory, share / 8);
  if (code == 0) code = use(memory, share / 8, 0xA2u);
  if (memory != nullptr) MUST(cudaFree(memory));
  return code;
}

int array() {
  cudaArray_t memory = nullptr;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
  const int code = cudaMallocArray(&memory, &format, 16384, share / (16384 * 16));
  if (memory != nullptr) MUST(cudaFreeArray(memory));
  return code;
}

int array_3d() {
  cudaArray_t memory = nullptr;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
  const int code =
      cudaMalloc3DArray(&memory, &format, make_cudaExtent(1024, 1024, share / (16 * kMiB)), 0);
  if (memory != nullptr) MUST(cudaFreeArray(memory));
  return code;
}

int mipmap() {
  cudaMipmappedArray_t memory = nullptr;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
  const int code = cudaMallocMipmappedArray(
      &memory, &format, make_cudaExtent(16384, share / (2 * 16384 * 16), 0), 4, 0);
  if (memory != nullptr) MUST(cudaFreeMipmappedArray(memory));
  return code;
}

int virtual_memory() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  const size_t bytes = share / (2 * kMiB) * 2 * kMiB;
  int code = cuMemCreate(&handle, bytes, &properties, 0);
  if (code != 0) return code;
  MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  code = cuMemMap(address, bytes, 0, handle, 0);
  if (code == 0) {
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    code = cuMemSetAccess(address, bytes, &access, 1);
    if (code == 0) code = use(reinterpret_cast<void*>(address), bytes, 0xA3u);
    MUST(cuMemUnmap(address, bytes));
  }
  MUST(cuMemAddressFree(address, bytes));
  MUST(cuMemRelease(handle));
  return code;
}

int stream_ordered() {
  void* memory = nullptr;
  int code = cudaMallocAsync(&memory, 2 * share, nullptr);
  if (code == 0) code = use(memory, 2 * share, 0xA4u);
  if (memory != nullptr) MUST(cudaFreeAsync(memory, nullptr));
  MUST(cudaStreamSynchronize(nullptr));
  cudaMemPool_t pool = nullptr;
  MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
  MUST(cudaMemPoolTrimTo(pool, 0));
  return code;
}

int graph() {
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t executable = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  int code = cudaMallocAsync(&memory, share, stream);
  if (code == 0) code = cudaMemsetAsync(memory, 1, share, stream);
  if (code == 0) code = cudaFreeAsync(memory, stream);
  const int ended = cudaStreamEndCapture(stream, &recorded);
  if (code == 0) code = ended;
  if (code == 0) code = cudaGraphInstantiate(&executable, recorded, 0);
  for (int i = 0; i < 3 && code == 0; ++i) code = cudaGraphLaunch(executable, stream);
  const int done = cudaStreamSynchronize(stream);
  if (code == 0) code = done;
  if (executable != nullptr) MUST(cudaGraphExecDestroy(executable));
  if (recorded != nullptr) MUST(cudaGraphDestroy(recorded));
  MUST(cudaStreamDestroy(stream));
  MUST(cudaDeviceGraphMemTrim(0));
  return code;
}

int local_memory() {
  uint32_t* out = nullptr;
  MUST(cudaMalloc(&out, 4 * 1024 * 256));
  deep<<<1024, 256>>>(out, 3);
  int code = cudaGetLastError();
  const int done = cudaDeviceSynchronize();
  if (code == 0) code = done;
  MUST(cudaFree(out));
  return code;
}

int stack_limit() {
  size_t before = 0;
  MUST(cudaDeviceGetLimit(&before, cudaLimitStackSize));
  const int code = cudaDeviceSetLimit(cudaLimitStackSize, 64 << 10);
  MUST(cudaDeviceSetLimit(cudaLimitStackSize, before));
  return code;
}

int streams() {
  std::vector<cudaStream_t> made;
  int code = 0;
  for (int i = 0; i < 1000 && code == 0; ++i) {
    cudaStream_t stream = nullptr;
    code = cudaStreamCreate(&stream);
    if (code == 0) made.push_back(stream);
  }
  for (const cudaStream_t stream : made) MUST(cudaStreamDestroy(stream));
  return code;
}

int registered() {
  const size_t bytes = 256 * kMiB;
  void* host = std::aligned_alloc(4096, bytes);
  std::memset(host, 0, bytes);
  int code = cudaHostRegister(host, bytes, cudaHostRegisterMapped);
  if (code == 0) MUST(cudaHostUnregister(host));
  std::free(host);
  void* pinned = nullptr;
  if (code == 0) code = cudaMallocHost(&pinned, bytes);
  if (pinned != nullptr) MUST(cudaFreeHost(pinned));
  return code;
}

int module() {
  CUmodule loaded = nullptr;
  const int code = cuModuleLoad(&loaded, std::getenv("CUPOOL_TEST_MODULE"));
  if (loaded != nullptr) MUST(cuModuleUnload(loaded));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    int group;
    const char* name;
    int (*ask)();
  } kAllocators[] = {
      {0, "plain", plain},
      {0, "managed", managed},
      {0, "array", array},
      {0, "streams", streams},
      {1, "array_3d", array_3d},
      {1, "mipmap", mipmap},
      {1, "virtual_memory", virtual_memory},
      {1, "module", module},
      {2, "stream_ordered", stream_ordered},
      {2, "graph", graph},
      {2, "registered", registered},
      {3, "local_memory", local_memory},
      {3, "stack_limit", stack_limit},
  };
  const int group = argc > 1 ? std::atoi(argv[1]) : 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&available, &total));
  // The limit on array heights and the time that touching takes bound it as well.
  share = std::min(available / 4 / kGiB * kGiB, 8 * kGiB);
  if (share == 0) share = available / 4 / (64 * kMiB) * 64 * kMiB;
  for (const auto& allocator : kAllocators) {
    if (allocator.group != group) continue;
    const auto begin = gpu_test::Clock::now();
    fill_and_free();
    const double filled = gpu_test::seconds_since(begin);
    const int code = allocator.ask();
    cudaGetLastError();
    contract::verdict(code == 0, std::string(allocator.name) + " when all memory is idle");
    contract::fact("%s_code=%d", allocator.name, code);
    contract::fact("%s_fill_seconds=%.3f", allocator.name, filled);
    contract::fact("%s_ask_seconds=%.3f", allocator.name, gpu_test::seconds_since(begin) - filled);
    if (code != 0 && cudaDeviceSynchronize() != 0) break;
  }
  return contract::exit_code();
}
