// SPDX-License-Identifier: Apache-2.0
// How legacy allocation behaves on the real driver, line by line: sizes and pointers at the edges,
// pitches, alignment, free memory, errors and their state (contracts 1, 3, 5, 6). "result" lines
// must be the same under cupool; "info" lines are known to depend on where memory comes from.
#include <cuda.h>
#include <cuda_runtime.h>

#include "common/gpu_test.h"

namespace {

constexpr size_t kMiB = 1 << 20;

void result(const char* what, int code) {
  const int peeked = cudaPeekAtLastError();
  const int first = cudaGetLastError();
  const int second = cudaGetLastError();
  std::printf("result %s: %d, last error %d %d %d\n", what, code, peeked, first, second);
}

void driver_result(const char* what, int code) {
  std::printf("result %s: %d\n", what, code);
}

char* at(void* base, size_t offset) {
  return static_cast<char*>(base) + offset;
}

void edges() {
  int sentinel = 0;
  void* p = &sentinel;
  result("malloc 0", cudaMalloc(&p, 0));
  std::printf("result   pointer null %d\n", p == nullptr);
  result("malloc null out", cudaMalloc(static_cast<void**>(nullptr), 16));
  for (const size_t size : {size_t{1} << 60, SIZE_MAX, SIZE_MAX / 2, size_t{1} << 47}) {
    p = &sentinel;
    result("malloc too much", cudaMalloc(&p, size));
    std::printf("result   pointer untouched %d null %d\n", p == &sentinel, p == nullptr);
  }
  result("free null", cudaFree(nullptr));
  result("free stack", cudaFree(&sentinel));
  result("free nonsense", cudaFree(reinterpret_cast<void*>(0x10)));
  void* q = nullptr;
  MUST(cudaMalloc(&p, kMiB));
  result("free interior 512", cudaFree(at(p, 512)));
  result("free interior 1", cudaFree(at(p, 1)));
  result("free", cudaFree(p));
  result("free again", cudaFree(p));
  MUST(cudaMalloc(&p, 4096));
  MUST(cudaMalloc(&q, 4096));
  result("free first", cudaFree(p));
  result("free first again", cudaFree(p));
  result("free second", cudaFree(q));
  // A success between must not clear the error, nor be changed by it.
  cudaFree(&sentinel);
  const int malloc_code = cudaMalloc(&p, 64);
  const int free_code = cudaFree(p);
  std::printf("result error kept: malloc %d free %d last %d\n", malloc_code, free_code,
              static_cast<int>(cudaGetLastError()));
  void* host = nullptr;
  MUST(cudaMallocHost(&host, 4096));
  result("free pinned", cudaFree(host));
  result("free host", cudaFreeHost(host));
  MUST(cudaMalloc(&p, 4096));
  result("freeHost of device memory", cudaFreeHost(p));
  result("freeAsync of legacy memory", cudaFreeAsync(p, nullptr));
  MUST(cudaDeviceSynchronize());
  result("free after it", cudaFree(p));
  MUST(cudaMallocAsync(&p, 4096, nullptr));
  result("free of stream-ordered memory", cudaFree(p));
  MUST(cudaMallocManaged(&p, 4096));
  result("free of managed memory", cudaFree(p));
}

// CUDA permits neither in a host function, and the block stays what it was.
void in_host_function() {
  struct Codes {
    CUdeviceptr block = 0;
    int driver_malloc = -1;
    int driver_free = -1;
    int wrong_free = -1;
    int runtime_malloc = -1;
    int runtime_free = -1;
  };
  Codes codes;
  MUST(cuMemAlloc(&codes.block, 4096));
  MUST(cudaLaunchHostFunc(
      nullptr,
      [](void* data) {
        auto* const asked = static_cast<Codes*>(data);
        CUdeviceptr address = 0;
        void* pointer = nullptr;
        asked->driver_malloc = cuMemAlloc(&address, 4096);
        asked->driver_free = cuMemFree(asked->block);
        asked->wrong_free = cuMemFree(asked->block + 512);
        asked->runtime_malloc = cudaMalloc(&pointer, 4096);
        asked->runtime_free = cudaFree(reinterpret_cast<void*>(asked->block));
      },
      &codes));
  MUST(cudaDeviceSynchronize());
  std::printf("result in a host function: malloc %d free %d interior %d, runtime %d %d\n",
              codes.driver_malloc, codes.driver_free, codes.wrong_free, codes.runtime_malloc,
              codes.runtime_free);
  driver_result("free after it", cuMemFree(codes.block));
  driver_result("free again", cuMemFree(codes.block));
}

void driver_edges() {
  CUdeviceptr p = 12345;
  size_t size = 0;
  driver_result("cuMemAlloc 0", cuMemAlloc(&p, 0));
  driver_result("cuMemAlloc null out", cuMemAlloc(nullptr, 16));
  driver_result("cuMemAlloc too much", cuMemAlloc(&p, size_t{1} << 60));
  std::printf("result   pointer untouched %d\n", p == 12345);
  driver_result("cuMemFree null", cuMemFree(0));
  driver_result("cuMemGetInfo null free", cuMemGetInfo(nullptr, &size));
  driver_result("cuMemGetInfo null total", cuMemGetInfo(&size, nullptr));
  MUST(cuMemAlloc(&p, 1000));
  CUdeviceptr base = 0;
  driver_result("range", cuMemGetAddressRange(&base, &size, p + 999));
  std::printf("result   base %d size %zu\n", base == p, size);
  driver_result("range base only", cuMemGetAddressRange(&base, nullptr, p));
  driver_result("range size only", cuMemGetAddressRange(nullptr, &size, p));
  driver_result("range past the end", cuMemGetAddressRange(&base, &size, p + (64 << 20)));
  CUcontext current = nullptr;
  CUcontext context = nullptr;
  MUST(cuCtxGetCurrent(&current));
  driver_result("context of pointer",
                cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p));
  std::printf("result   is the current one %d\n", context == current);
  unsigned int type = 0;
  driver_result("type of pointer",
                cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 3));
  std::printf("result   type %u\n", type);
  int ordinal = -1;
  driver_result("ordinal of pointer",
                cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
  std::printf("result   ordinal %d\n", ordinal);
  int capable = -1;
  cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p);
  std::printf("info legacy IPC capable %d\n", capable);
  CUmemoryPool pool = nullptr;
  cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
  std::printf("info in a driver pool %d\n", pool != nullptr);
  CUipcMemHandle handle;
  std::printf("info cuIpcGetMemHandle %d\n", static_cast<int>(cuIpcGetMemHandle(&handle, p)));
  // A free needs no current context.
  MUST(cuCtxSetCurrent(nullptr));
  driver_result("free without context", cuMemFree(p));
  driver_result("alloc without context", cuMemAlloc(&p, 16));
  MUST(cuCtxSetCurrent(current));
}

void pitches() {
  const size_t widths[] = {1,    2,    31,   32,   33,   63,    64,    100,    127,    128,  129,
                           255,  256,  257,  511,  512,  513,   1000,  1024,   1025,   2047, 2048,
                           2049, 4000, 4096, 5000, 8191, 65535, 65536, 100001, 1000003};
  for (const size_t width : widths) {
    for (const size_t height : {1, 2, 7, 1000}) {
      void* p = nullptr;
      size_t pitch = 0;
      const int code = cudaMallocPitch(&p, &pitch, width, height);
      std::printf("result pitch width %zu height %zu: %d %zu\n", width, height, code, pitch);
      MUST(cudaFree(p));
    }
    for (const unsigned int element : {4u, 8u, 16u}) {
      CUdeviceptr p = 0;
      size_t pitch = 0;
      const int code = cuMemAllocPitch(&p, &pitch, width, 3, element);
      std::printf("result driver pitch width %zu element %u: %d %zu\n", width, element, code,
                  pitch);
      MUST(cuMemFree(p));
    }
  }
  void* p = nullptr;
  size_t pitch = 77;
  result("pitch width 0", cudaMallocPitch(&p, &pitch, 0, 4));
  std::printf("result   pitch %zu null %d\n", pitch, p == nullptr);
  result("  free", cudaFree(p));
  p = nullptr;
  result("pitch height 0", cudaMallocPitch(&p, &pitch, 100, 0));
  std::printf("result   pitch %zu null %d\n", pitch, p == nullptr);
  result("  free", cudaFree(p));
  result("pitch null out", cudaMallocPitch(static_cast<void**>(nullptr), &pitch, 100, 4));
  result("pitch null pitch", cudaMallocPitch(&p, nullptr, 100, 4));
  CUdeviceptr device = 0;
  driver_result("driver pitch element 3", cuMemAllocPitch(&device, &pitch, 64, 4, 3));
  driver_result("driver pitch width 0", cuMemAllocPitch(&device, &pitch, 0, 4, 4));
  driver_result("driver pitch height 0", cuMemAllocPitch(&device, &pitch, 64, 0, 4));
  for (const size_t depth : {0, 1, 5}) {
    cudaPitchedPtr pitched{};
    const int code = cudaMalloc3D(&pitched, make_cudaExtent(300, 10, depth));
    std::printf("result 3D depth %zu: %d pitch %zu xsize %zu ysize %zu null %d\n", depth, code,
                pitched.pitch, pitched.xsize, pitched.ysize, pitched.ptr == nullptr);
    result("  free", cudaFree(pitched.ptr));
  }
}

void alignment() {
  for (const size_t size : {size_t{1}, size_t{513}, size_t{65536}, kMiB, 2 * kMiB - 1, 2 * kMiB,
                            2 * kMiB + 1, 5 * kMiB, 64 * kMiB}) {
    bool by_512 = true;
    bool by_2_mib = true;
    std::vector<void*> blocks(12);
    for (void*& p : blocks) {
      MUST(cudaMalloc(&p, size));
      by_512 = by_512 && reinterpret_cast<uintptr_t>(p) % 512 == 0;
      by_2_mib = by_2_mib && reinterpret_cast<uintptr_t>(p) % (2 * kMiB) == 0;
    }
    for (void* p : blocks) MUST(cudaFree(p));
    std::printf("result alignment of %zu: 512 %d\n", size, by_512);
    // Below 2 MiB legacy addresses are multiples of 2 MiB only by chance.
    std::printf("%s alignment of %zu: 2 MiB %d\n", size >= 2 * kMiB ? "result" : "info", size,
                by_2_mib);
  }
}

void free_memory() {
  size_t before = 0;
  size_t during = 0;
  size_t after = 0;
  size_t total = 0;
  void* p = nullptr;
  MUST(cudaMemGetInfo(&before, &total));
  MUST(cudaMalloc(&p, 1000 * kMiB));
  MUST(cudaMemGetInfo(&during, &total));
  MUST(cudaFree(p));
  MUST(cudaMemGetInfo(&after, &total));
  std::printf("result allocation shows %d, free shows %d\n", before - during >= 1000 * kMiB,
              after + 2 * kMiB >= before);
  std::printf("info taken by 1000 MiB: %zu MiB, kept after free: %zd KiB\n",
              (before - during) / kMiB, static_cast<ssize_t>(before - after) / 1024);
}

}  // namespace

int main() {
  edges();
  driver_edges();
  in_host_function();
  pitches();
  alignment();
  free_memory();
  return 0;
}
