// SPDX-License-Identifier: Apache-2.0
// The error codes that legacy allocation gives (contract 3), one line each, through the runtime
// (route=runtime) or the driver interface (route=driver). The test compares line by line.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "probe.h"

namespace {

constexpr size_t kTooMuch = size_t{1} << 60;

void line(const char* what, int code) {
  std::printf("%-44s %d\n", what, code);
}

// Prints the code, and the last error as a peek, a get and a second get see it.
void runtime_line(const char* what, cudaError_t code) {
  const int peeked = cudaPeekAtLastError();
  const int first = cudaGetLastError();
  const int second = cudaGetLastError();
  std::printf("%-44s %d, last error %d %d %d\n", what, static_cast<int>(code), peeked, first,
              second);
}

char* at(void* base, size_t offset) {
  return static_cast<char*>(base) + offset;
}

void runtime_allocation_errors() {
  int sentinel = 0;
  void* p = &sentinel;
  runtime_line("cudaMalloc size 0", cudaMalloc(&p, 0));
  std::printf("  pointer is %s\n", p == nullptr ? "null" : "set");
  runtime_line("cudaMalloc null pointer", cudaMalloc(nullptr, 16));
  runtime_line("cudaMalloc null pointer size 0", cudaMalloc(nullptr, 0));
  for (const size_t size : {kTooMuch, SIZE_MAX, SIZE_MAX / 2}) {
    p = &sentinel;
    runtime_line("cudaMalloc too much", cudaMalloc(&p, size));
    std::printf("  pointer is %s\n", p == &sentinel ? "untouched" : p == nullptr ? "null" : "set");
  }
  size_t pitch = 77;
  p = nullptr;
  runtime_line("cudaMallocPitch width 0", cudaMallocPitch(&p, &pitch, 0, 4));
  std::printf("  pitch %zu, pointer %s\n", pitch, p == nullptr ? "null" : "set");
  runtime_line("  its free", cudaFree(p));
  p = nullptr;
  runtime_line("cudaMallocPitch height 0", cudaMallocPitch(&p, &pitch, 100, 0));
  std::printf("  pointer %s\n", p == nullptr ? "null" : "set");
  runtime_line("  its free", cudaFree(p));
  runtime_line("cudaMallocPitch null pointer", cudaMallocPitch(nullptr, &pitch, 100, 4));
  runtime_line("cudaMallocPitch null pitch", cudaMallocPitch(&p, nullptr, 100, 4));
  runtime_line("cudaMallocPitch too much", cudaMallocPitch(&p, &pitch, kTooMuch, 4));
  cudaPitchedPtr pitched{};
  runtime_line("cudaMalloc3D empty", cudaMalloc3D(&pitched, cudaExtent{0, 0, 0}));
  runtime_line("  its free", cudaFree(pitched.ptr));
  runtime_line("cudaMalloc3D too much", cudaMalloc3D(&pitched, cudaExtent{kTooMuch, 4, 4}));
}

void runtime_free_errors() {
  void* p = nullptr;
  int on_host = 0;
  runtime_line("cudaFree null", cudaFree(nullptr));
  runtime_line("cudaFree stack pointer", cudaFree(&on_host));
  runtime_line("cudaFree nonsense", cudaFree(reinterpret_cast<void*>(0x10)));
  MUST(cudaMalloc(&p, 1 << 20));
  runtime_line("cudaFree interior", cudaFree(at(p, 512)));
  runtime_line("cudaFree interior by one byte", cudaFree(at(p, 1)));
  runtime_line("cudaFree", cudaFree(p));
  runtime_line("cudaFree again", cudaFree(p));
  void* q = nullptr;
  MUST(cudaMalloc(&p, 4096));
  MUST(cudaMalloc(&q, 4096));
  runtime_line("two blocks: first", cudaFree(p));
  runtime_line("two blocks: first again", cudaFree(p));
  runtime_line("two blocks: second", cudaFree(q));
  // An error must not hide the previous one, and a success must not clear it (last-error state).
  MUST(cudaMalloc(&p, 4096));
  cudaFree(at(p, 8));
  void* other = nullptr;
  const int malloc_code = cudaMalloc(&other, 64);
  const int free_code = cudaFree(other);
  std::printf("after an error: malloc %d, free %d, last error %d\n", malloc_code, free_code,
              static_cast<int>(cudaGetLastError()));
  MUST(cudaFree(p));
}

// Memory of other allocators is untouched by us (contract 12), its misuse answers as before.
void runtime_other_allocators() {
  void* host = nullptr;
  MUST(cudaMallocHost(&host, 4096));
  runtime_line("cudaFree of pinned host memory", cudaFree(host));
  runtime_line("cudaFreeHost", cudaFreeHost(host));
  void* device = nullptr;
  MUST(cudaMalloc(&device, 4096));
  runtime_line("cudaFreeHost of device memory", cudaFreeHost(device));
  runtime_line("cudaFree after it", cudaFree(device));
  void* async = nullptr;
  MUST(cudaMallocAsync(&async, 4096, nullptr));
  MUST(cudaStreamSynchronize(nullptr));
  runtime_line("cudaFree of stream-ordered memory", cudaFree(async));
  cudaPointerAttributes attributes{};
  MUST(cudaMalloc(&device, 8192));
  runtime_line("attributes", cudaPointerGetAttributes(&attributes, device));
  std::printf("  type %d device %d same pointer %d\n", static_cast<int>(attributes.type),
              attributes.device, attributes.devicePointer == device);
  runtime_line("attributes interior", cudaPointerGetAttributes(&attributes, at(device, 100)));
  std::printf("  type %d device %d\n", static_cast<int>(attributes.type), attributes.device);
  MUST(cudaFree(device));
  MUST(cudaMalloc(&device, 9000));  // not the size of a class
  runtime_line("attributes behind the end",
               cudaPointerGetAttributes(&attributes, at(device, 9000)));
  std::printf("  type %d\n", static_cast<int>(attributes.type));
  MUST(cudaFree(device));
}

void runtime_mem_info() {
  size_t available = 0;
  size_t total = 0;
  runtime_line("cudaMemGetInfo", cudaMemGetInfo(&available, &total));
  std::printf("  sensible %d\n", available > 0 && available <= total);
}

void driver_lines() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr p = 12345;
  line("cuMemAlloc before cuInit", cuMemAlloc(&p, 16));
  line("cuMemFree before cuInit", cuMemFree(0));
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  line("cuMemAlloc without context", cuMemAlloc(&p, 16));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  p = 12345;
  line("cuMemAlloc size 0", cuMemAlloc(&p, 0));
  std::printf("  pointer %s\n", p == 12345 ? "untouched" : "written");
  line("cuMemAlloc null pointer", cuMemAlloc(nullptr, 16));
  line("cuMemAlloc too much", cuMemAlloc(&p, kTooMuch));
  line("cuMemAlloc SIZE_MAX", cuMemAlloc(&p, SIZE_MAX));
  std::printf("  pointer %s\n", p == 12345 ? "untouched" : "written");
  line("cuMemFree null", cuMemFree(0));
  int on_host = 0;
  line("cuMemFree stack pointer", cuMemFree(reinterpret_cast<CUdeviceptr>(&on_host)));
  MUST(cuMemAlloc(&p, 1 << 20));
  line("cuMemFree interior", cuMemFree(p + 512));
  line("cuMemFree", cuMemFree(p));
  line("cuMemFree again", cuMemFree(p));
  size_t pitch = 0;
  line("cuMemAllocPitch width 0", cuMemAllocPitch(&p, &pitch, 0, 4, 4));
  line("cuMemAllocPitch height 0", cuMemAllocPitch(&p, &pitch, 64, 0, 4));
  line("cuMemAllocPitch element size 3", cuMemAllocPitch(&p, &pitch, 64, 4, 3));
  line("cuMemAllocPitch null pitch", cuMemAllocPitch(&p, nullptr, 64, 4, 4));
  line("cuMemAllocPitch null pointer", cuMemAllocPitch(nullptr, &pitch, 64, 4, 4));
  CUdeviceptr base = 0;
  size_t size = 0;
  line("range of null", cuMemGetAddressRange(&base, &size, 0));
  MUST(cuMemAlloc(&p, 1000));
  line("range", cuMemGetAddressRange(&base, &size, p + 999));
  std::printf("  base %d size %zu\n", base == p, size);
  line("range, base only", cuMemGetAddressRange(&base, nullptr, p));
  line("range, size only", cuMemGetAddressRange(nullptr, &size, p));
  line("range behind the end", cuMemGetAddressRange(&base, &size, p + 1000));
  std::printf("  base %d size %zu\n", base == p, size);
  unsigned type = 0;
  line("attribute behind the end",
       cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 1000));
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* values[] = {&type};
  line("attributes behind the end", cuPointerGetAttributes(1, &which, values, p + 1000));
  std::printf("  type %u\n", type);
  // HAMi-core #333: a null argument of cuMemGetInfo must not crash.
  line("cuMemGetInfo null free", cuMemGetInfo(nullptr, &size));
  line("cuMemGetInfo null total", cuMemGetInfo(&size, nullptr));
  CUcontext of_pointer = nullptr;
  line("context attribute", cuPointerGetAttribute(&of_pointer, CU_POINTER_ATTRIBUTE_CONTEXT, p));
  std::printf("  is the context %d\n", of_pointer == context);  // contract 6
  CUipcMemHandle handle;
  line("IPC handle", cuIpcGetMemHandle(&handle, p));
  CUdeviceptr freed = 0;
  MUST(cuMemAlloc(&freed, 4096));
  MUST(cuMemFree(freed));
  line("IPC handle of freed memory", cuIpcGetMemHandle(&handle, freed));
  type = 7;
  line("attribute of freed memory",
       cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, freed));
  std::printf("  type %u\n", type);
  // What others are to know of memory has to be the program's (contract 6).
  const int on = 1;
  const auto sync_memops = [&](CUdeviceptr address) {
    return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
  };
  line("SYNC_MEMOPS of freed memory", sync_memops(freed));
  line("SYNC_MEMOPS behind the end", sync_memops(p + 1000));
  line("IPC handle behind the end", cuIpcGetMemHandle(&handle, p + 1000));
  MUST(cuMemAlloc(&freed, 4 << 20));
  MUST(cuMemFree(freed));
  int descriptor = -1;
  line("descriptor of freed memory",
       cuMemGetHandleForAddressRange(&descriptor, freed, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                     0));
  CUdeviceptr kept = 0;
  MUST(cuMemAlloc(&kept, 4096));
  // A free works whichever context is current, or none (contract 10).
  MUST(cuCtxSetCurrent(nullptr));
  // Not on a default stream, which is one of the current context.
  for (CUstream stream : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    line("cuMemFreeAsync without current context", cuMemFreeAsync(kept, stream));
  }
  line("cuMemFree after it", cuMemFree(kept));
  line("cuMemFree without current context", cuMemFree(p));
  line("cuMemAlloc without current context", cuMemAlloc(&p, 16));
  MUST(cuDevicePrimaryCtxRelease(device));
}

}  // namespace

int main(int argc, char** argv) {
  if (probe::argument_is(argc, argv, "route", "driver")) {
    driver_lines();
    return 0;
  }
  runtime_allocation_errors();
  runtime_free_errors();
  runtime_other_allocators();
  runtime_mem_info();
  return 0;
}
