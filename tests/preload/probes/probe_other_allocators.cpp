// SPDX-License-Identifier: Apache-2.0
// Every other call that takes device memory (contract 4). fill=1: the device is filled with
// cudaMalloc and all of it freed before each call, busy=1: with work on the legacy stream and on a
// blocking one still pending. inject=1: the call's first attempt fails for lack of memory;
// otherwise it asks for three quarters of the device, which only goes if what was freed went back.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "probe.h"
#include "sim_control.h"

namespace {

constexpr size_t kMiB = 1 << 20;
const char kImage[] = "the simulated device knows kernels by name";

struct Operation {
  const char* name;   // as the test prints it
  const char* fails;  // the driver's functions for the injected fault
  std::function<int(size_t bytes)> call;
};

int array_of(size_t bytes, size_t depth) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = 1 << 16;
  shape.Height = bytes / shape.Width / (depth == 0 ? 1 : depth);
  shape.Depth = depth;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  CUarray array = nullptr;
  const int code = cuArray3DCreate(&array, &shape);
  if (code == 0) MUST(cuArrayDestroy(array));
  return code;
}

int array_2d(size_t bytes) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 1 << 16;
  shape.Height = bytes / shape.Width;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  CUarray array = nullptr;
  const int code = cuArrayCreate(&array, &shape);
  if (code == 0) MUST(cuArrayDestroy(array));
  return code;
}

int runtime_array(size_t bytes) {
  const cudaChannelFormatDesc format = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
  cudaArray_t array = nullptr;
  const int code = cudaMallocArray(&array, &format, 1 << 16, bytes >> 16);
  if (code == 0) MUST(cudaFreeArray(array));
  return code;
}

int physical(size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  const int code = cuMemCreate(&handle, bytes, &properties, 0);
  if (code == 0) MUST(cuMemRelease(handle));
  return code;
}

int mapped(size_t) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  MUST(cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  MUST(cuMemAddressReserve(&address, 2 * kMiB, 0, 0, 0));
  const int code = cuMemMap(address, 2 * kMiB, 0, handle, 0);
  if (code == 0) MUST(cuMemUnmap(address, 2 * kMiB));
  MUST(cuMemAddressFree(address, 2 * kMiB));
  MUST(cuMemRelease(handle));
  return code;
}

int managed(size_t bytes) {
  void* p = nullptr;
  const int code = cudaMallocManaged(&p, bytes);
  if (code == 0) MUST(cudaFree(p));
  return code;
}

int asynchronous(size_t bytes) {
  void* p = nullptr;
  const int code = cudaMallocAsync(&p, bytes, nullptr);
  if (code == 0) MUST(cudaFreeAsync(p, nullptr));
  MUST(cudaDeviceSynchronize());
  cudaMemPool_t pool = nullptr;
  MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
  MUST(cudaMemPoolTrimTo(pool, 0));
  return code;
}

int own_pool(size_t bytes) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool = nullptr;
  MUST(cudaMemPoolCreate(&pool, &properties));
  void* p = nullptr;
  const int code = cudaMallocFromPoolAsync(&p, bytes, pool, nullptr);
  if (code == 0) MUST(cudaFreeAsync(p, nullptr));
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemPoolDestroy(pool));
  return code;
}

// As many modules as the memory holds, in the simulated device 2 MiB each.
template <typename Load>
int modules(size_t bytes, const Load& load) {
  std::vector<CUmodule> loaded;
  int code = 0;
  for (size_t done = 0; done < bytes && code == 0; done += 2 * kMiB) {
    CUmodule module = nullptr;
    code = load(&module);
    if (code == 0) loaded.push_back(module);
  }
  for (const CUmodule module : loaded) MUST(cuModuleUnload(module));
  return code;
}

int library(size_t) {
  CUlibrary loaded = nullptr;
  const int code = cuLibraryLoadData(&loaded, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (code == 0) MUST(cuLibraryUnload(loaded));
  return code;
}

CUmodule module = nullptr;
CUfunction spin = nullptr;
CUgraph graph = nullptr;
CUgraphExec executable = nullptr;
CUstream stream = nullptr;

void prepare() {
  MUST(cudaFree(nullptr));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuModuleLoadData(&module, kImage));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  uint64_t time = 1;
  void* arguments[] = {&time};
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
}

int launch() {
  uint64_t time = 1;
  void* arguments[] = {&time};
  return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

int launch_ex() {
  uint64_t time = 1;
  void* arguments[] = {&time};
  CUlaunchConfig shape{};
  shape.gridDimX = shape.gridDimY = shape.gridDimZ = 1;
  shape.blockDimX = shape.blockDimY = shape.blockDimZ = 1;
  shape.hStream = stream;
  return cuLaunchKernelEx(&shape, spin, arguments, nullptr);
}

int launch_cooperative() {
  uint64_t time = 1;
  void* arguments[] = {&time};
  return cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments);
}

int instantiate() {
  CUgraphExec made = nullptr;
  const int code = cuGraphInstantiateWithFlags(&made, graph, 0);
  if (code == 0) MUST(cuGraphExecDestroy(made));
  return code;
}

int stream_create(bool with_priority) {
  CUstream made = nullptr;
  const int code = with_priority ? cuStreamCreateWithPriority(&made, CU_STREAM_DEFAULT, 0)
                                 : cuStreamCreate(&made, CU_STREAM_DEFAULT);
  if (code == 0) MUST(cuStreamDestroy(made));
  return code;
}

int context_create() {
  CUctxCreateParams parameters{};
  CUcontext made = nullptr;
  const int code = cuCtxCreate(&made, &parameters, 0, 0);
  if (code == 0) MUST(cuCtxDestroy(made));
  return code;
}

int primary_retain() {
  CUcontext retained = nullptr;
  const int code = cuDevicePrimaryCtxRetain(&retained, 0);
  if (code == 0) MUST(cuDevicePrimaryCtxRelease(0));
  return code;
}

int host_register() {
  static std::vector<char> host(1 << 16);
  const int code = cudaHostRegister(host.data(), host.size(), 0);
  if (code == 0) MUST(cudaHostUnregister(host.data()));
  return code;
}

const Operation kOperations[] = {
    {"managed", "cuMemAllocManaged:1=2", managed},
    {"array", "cuArrayCreate_v2:1=2", array_2d},
    {"3D array", "cuArray3DCreate_v2:1=2", [](size_t bytes) { return array_of(bytes, 4); }},
    {"runtime array", "cuArray3DCreate_v2:1=2", runtime_array},
    {"physical memory", "cuMemCreate:1=2", physical},
    {"map", "cuMemMap:1=2", mapped},
    {"async", "cuMemAllocAsync:1=2", asynchronous},
    {"own pool", "cuMemAllocFromPoolAsync:1=2", own_pool},
    {"module", "cuModuleLoadData:1=2",
     [](size_t bytes) {
       return modules(bytes, [](CUmodule* to) { return cuModuleLoadData(to, kImage); });
     }},
    {"module with options", "cuModuleLoadDataEx:1=2",
     [](size_t bytes) {
       return modules(
           bytes, [](CUmodule* to) { return cuModuleLoadDataEx(to, kImage, 0, nullptr, nullptr); });
     }},
    {"fat binary", "cuModuleLoadFatBinary:1=2",
     [](size_t bytes) {
       return modules(bytes, [](CUmodule* to) { return cuModuleLoadFatBinary(to, kImage); });
     }},
    {"library", "cuLibraryLoadData:1=2", library},
    {"function", "cuModuleGetFunction:1=2",
     [](size_t) {
       CUfunction function = nullptr;
       return static_cast<int>(cuModuleGetFunction(&function, module, "stamp_u32"));
     }},
    {"instantiate", "cuGraphInstantiateWithFlags:1=2", [](size_t) { return instantiate(); }},
    {"upload", "cuGraphUpload:1=2",
     [](size_t) { return static_cast<int>(cuGraphUpload(executable, stream)); }},
    {"graph launch", "cuGraphLaunch:1=2",
     [](size_t) { return static_cast<int>(cuGraphLaunch(executable, stream)); }},
    {"stream", "cuStreamCreate:1=2", [](size_t) { return stream_create(false); }},
    {"stream with priority", "cuStreamCreateWithPriority:1=2",
     [](size_t) { return stream_create(true); }},
    {"launch", "cuLaunchKernel:1=2", [](size_t) { return launch(); }},
    {"launch with attributes", "cuLaunchKernelEx:1=2", [](size_t) { return launch_ex(); }},
    {"cooperative launch", "cuLaunchCooperativeKernel:1=2",
     [](size_t) { return launch_cooperative(); }},
    {"limit", "cuCtxSetLimit:1=2",
     [](size_t) { return static_cast<int>(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096)); }},
    {"context", "cuCtxCreate:1=2", [](size_t) { return context_create(); }},
    {"primary context", "cuDevicePrimaryCtxRetain:1=2", [](size_t) { return primary_retain(); }},
    {"host registration", "cuMemHostRegister_v2:1=2", [](size_t) { return host_register(); }},
    // Last: what it frees is idle for whatever comes after it.
    {"malloc", "cuMemAllocFromPoolAsync:1=2,cuMemAlloc_v2:1=2",
     [](size_t bytes) {
       void* p = nullptr;
       const int code = cudaMalloc(&p, bytes);
       if (code == 0) MUST(cudaFree(p));
       return code;
     }},
};

void fill_and_free(bool busy) {
  cudaStream_t blocking = nullptr;
  MUST(cudaStreamCreate(&blocking));
  std::vector<void*> blocks;
  void* p = nullptr;
  while (cudaMalloc(&p, 16 * kMiB) == cudaSuccess) blocks.push_back(p);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (busy) MUST(cudaMemsetAsync(blocks[i], 1, 4096, i % 2 == 0 ? nullptr : blocking));
  }
  for (void* block : blocks) MUST(cudaFree(block));
  MUST(cudaStreamDestroy(blocking));
}

}  // namespace

int main(int argc, char** argv) {
  const bool filled = probe::argument_is(argc, argv, "fill", "1");
  const bool injected = probe::argument_is(argc, argv, "inject", "1");
  const bool busy = probe::argument_is(argc, argv, "busy", "1");
  prepare();
  for (const Operation& operation : kOperations) {
    if (filled) fill_and_free(busy);
    size_t available = 0;
    size_t total = 0;
    MUST(cudaMemGetInfo(&available, &total));
    const size_t bytes = injected ? 2 * kMiB : total * 3 / 4 / (2 * kMiB) * (2 * kMiB);
    // The runtime's own functions only: what the driver answers is no last error.
    if (injected) probe::inject(operation.fails);
    const int code = operation.call(bytes);
    probe::inject("");
    std::printf("%s: %d, last error %d\n", operation.name, code,
                static_cast<int>(cudaGetLastError()));
  }
  return 0;
}
