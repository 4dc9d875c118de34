// SPDX-License-Identifier: Apache-2.0
// A program that is linked to driver and runtime, so that it calls the hooks even where cupool is
// switched off. Calls that are rare, or wrong: before the process has allocated anything, and again
// when it has. Prints what each call answers.
#include <cuda.h>
#include <cuda_runtime.h>

#include "probe.h"

// By their exported names, whatever the header makes of them.
extern "C" {
CUresult get_proc_address(const char*, void**, int, cuuint64_t) __asm__("cuGetProcAddress");
CUresult get_proc_address_v2(const char*, void**, int, cuuint64_t,
                             void*) __asm__("cuGetProcAddress_v2");
CUresult synchronize_v2(CUcontext) __asm__("cuCtxSynchronize_v2");
CUresult alloc_host(void**, size_t) __asm__("cuMemAllocHost_v2");
CUresult alloc_from_pool_ptsz(CUdeviceptr*, size_t, CUmemoryPool,
                              CUstream) __asm__("cuMemAllocFromPoolAsync_ptsz");
CUresult alloc_async_ptsz(CUdeviceptr*, size_t, CUstream) __asm__("cuMemAllocAsync_ptsz");
CUresult free_async_ptsz(CUdeviceptr, CUstream) __asm__("cuMemFreeAsync_ptsz");
CUresult attach(CUcontext*, unsigned) __asm__("cuCtxAttach");
CUresult detach(CUcontext) __asm__("cuCtxDetach");
}

namespace {

#define SAY(call) probe::say(#call, static_cast<long>(call))

constexpr size_t kBytes = 4096;
alignas(4096) unsigned char registered[2 * kBytes];
CUcontext context = nullptr;
CUdeviceptr block = 0;  // 0: nothing is allocated yet

void queries() {
  void* function = nullptr;
  SAY(get_proc_address(nullptr, &function, 13000, 0));
  SAY(get_proc_address("cuMemAlloc", nullptr, 13000, 0));
  SAY(get_proc_address("cuNoSuchFunction", &function, 13000, 0));
  SAY(get_proc_address("cuMemAlloc", &function, 13000, 0));
  SAY(function != nullptr);
  SAY(get_proc_address_v2(nullptr, &function, 13000, 0, nullptr));
  SAY(get_proc_address_v2("cuMemAlloc", nullptr, 13000, 0, nullptr));
  SAY(get_proc_address_v2("cuNoSuchFunction", &function, 13000, 0, nullptr));
  SAY(function == nullptr);
  SAY(get_proc_address_v2("cuMemAlloc", &function, 13000, 0, nullptr));
  SAY(function != nullptr);
}

void contexts() {
  const auto none = reinterpret_cast<CUcontext>(registered);
  CUcontext attached = nullptr;
  SAY(synchronize_v2(nullptr));
  SAY(synchronize_v2(context));
  SAY(synchronize_v2(none));
  SAY(attach(&attached, 7));
  SAY(attach(&attached, 0));
  SAY(attached == context);
  SAY(detach(context));
  SAY(detach(none));
}

void pitched() {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  void* memory = nullptr;
  cudaPitchedPtr box{};
  SAY(cuMemAllocPitch(&address, nullptr, 100, 10, 4));
  SAY(cuMemAllocPitch(nullptr, &pitch, 100, 10, 4));
  SAY(cuMemAllocPitch(&address, &pitch, 100, 10, 5));
  SAY(cuMemAllocPitch(&address, &pitch, 100, 0, 4));
  SAY(cudaMallocPitch(&memory, nullptr, 100, 10));
  SAY(cudaMallocPitch(nullptr, &pitch, 100, 10));
  SAY(cudaMalloc3D(nullptr, make_cudaExtent(100, 10, 10)));
  SAY(cudaMalloc3D(&box, make_cudaExtent(100, size_t{1} << 40, size_t{1} << 40)));
  SAY(box.ptr != nullptr);
  cudaGetLastError();
}

void host_memory() {
  CUdeviceptr device = 0;
  void* memory = nullptr;
  SAY(cuMemHostGetDevicePointer(&device, registered, 0));
  SAY(cuMemHostUnregister(registered));
  SAY(cuMemHostRegister(registered, sizeof registered, 0));
  SAY(cuMemHostRegister(registered, sizeof registered, 0));
  SAY(cuMemHostGetDevicePointer(&device, registered, 0));
  SAY(cuMemHostGetDevicePointer(&device, registered + kBytes, 0));
  SAY(device == reinterpret_cast<CUdeviceptr>(registered) + kBytes);
  SAY(cuMemHostUnregister(registered));
  SAY(cuMemFreeHost(registered));
  SAY(cuMemFreeHost(nullptr));
  SAY(alloc_host(nullptr, kBytes));
  for (int i = 0; i < 5; ++i) {
    MUST(alloc_host(&memory, kBytes));
    std::memset(memory, i, kBytes);
    MUST(cuMemFreeHost(memory));
  }
}

void shared_memory() {
  CUipcMemHandle handle{};
  CUdeviceptr address = 0;
  unsigned int value = 1;
  int file = -1;
  SAY(cuIpcGetMemHandle(&handle, 0x1000));
  SAY(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  SAY(cuIpcCloseMemHandle(0x1000));
  SAY(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 0x1000));
  SAY(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
  SAY(cuMemGetHandleForAddressRange(&file, 0x1000, kBytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
}

void in_streams() {
  CUstream stream = nullptr;
  CUmemoryPool pool = nullptr;
  CUdeviceptr address = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  SAY(cuMemAllocAsync(&address, 0, stream));
  SAY(cuMemAllocAsync(nullptr, kBytes, stream));
  SAY(cuMemAllocFromPoolAsync(&address, kBytes, nullptr, stream));
  for (int i = 0; i < 4; ++i) {
    MUST(alloc_from_pool_ptsz(&address, kBytes, pool, stream));
    MUST(free_async_ptsz(address, stream));
    MUST(alloc_async_ptsz(&address, kBytes, nullptr));
    MUST(free_async_ptsz(address, nullptr));
  }
  SAY(alloc_from_pool_ptsz(&address, kBytes, nullptr, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuStreamDestroy(stream));
}

void copies() {
  static unsigned char from[64] = {1, 2, 3};
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.dstHost = registered;
  copy.srcPitch = copy.dstPitch = sizeof from;
  copy.srcHeight = copy.dstHeight = 1;
  copy.WidthInBytes = sizeof from;
  copy.Height = copy.Depth = 1;
  copy.srcContext = copy.dstContext = context;
  SAY(cuMemcpy3DPeer(&copy));
  SAY(cuMemcpy3DPeer(nullptr));
  SAY(cuMemcpy3DPeerAsync(nullptr, nullptr));
}

void elapsed_times() {
  CUevent begin = nullptr;
  CUevent end = nullptr;
  float milliseconds = 0;
  MUST(cuEventCreate(&begin, CU_EVENT_DEFAULT));
  MUST(cuEventCreate(&end, CU_EVENT_DEFAULT));
  SAY(cuEventElapsedTime(&milliseconds, begin, end));
  MUST(cuEventRecord(begin, nullptr));
  MUST(cuEventRecord(end, nullptr));
  MUST(cuEventSynchronize(end));
  SAY(cuEventElapsedTime(&milliseconds, begin, end));
  MUST(cuEventDestroy(begin));
  MUST(cuEventDestroy(end));
}

void created_memory() {
  CUmemAllocationProp properties{};
  CUmemGenericAllocationHandle handle = 0;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  SAY(cuMemCreate(&handle, size_t{2} << 20, &properties, 0));
  MUST(cuMemRelease(handle));
  SAY(cuMemCreate(&handle, size_t{1} << 50, &properties, 0));
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  const CUresult on_host = cuMemCreate(&handle, size_t{2} << 20, &properties, 0);
  probe::say("on the host", on_host);
  if (on_host == CUDA_SUCCESS) MUST(cuMemRelease(handle));
}

}  // namespace

int main() {
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  for (int round = 0; round < 2; ++round) {
    queries();
    contexts();
    shared_memory();
    copies();
    elapsed_times();
    created_memory();
    in_streams();
    host_memory();
    pitched();
    if (round == 0) MUST(cuMemAlloc(&block, kBytes));
  }
  MUST(cuMemFree(block));
  return 0;
}
