// SPDX-License-Identifier: Apache-2.0
// What the driver says of a pointer (contract 6): each attribute of cuda.h by the singular and the
// plural query, the address range, the runtime's attributes; of live blocks at their beginning,
// inside and past their end, of freed ones, and of addresses that are none of cudaMalloc's.
// Addresses are printed relative to the block, so that the lines can be compared.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "probe.h"

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr int kLastAttribute = CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;

// Values that are addresses or handles are made comparable; numbers are printed as they are.
void print_value(int attribute, const unsigned long long* data, CUdeviceptr base) {
  const unsigned long long value = data[0];
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
      CUcontext current = nullptr;
      MUST(cuCtxGetCurrent(&current));
      std::printf(" %s", value == 0                                      ? "null"
                         : value == reinterpret_cast<uintptr_t>(current) ? "current"
                                                                         : "another");
      return;
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      if (value == 0) {
        std::printf(" null");
      } else {
        std::printf(" base%+lld", static_cast<long long>(value - base));
      }
      return;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      std::printf(" %s", value == 0 ? "zero" : "some");
      return;
    default:
      std::printf(" %llu", value);
  }
}

void singular(CUdeviceptr address, CUdeviceptr base) {
  for (int attribute = 1; attribute <= kLastAttribute; ++attribute) {
    unsigned long long data[2] = {0, 0};
    const int code =
        cuPointerGetAttribute(data, static_cast<CUpointer_attribute>(attribute), address);
    std::printf("  attribute %d: %d", attribute, code);
    if (code == 0) print_value(attribute, data, base);
    std::printf("\n");
  }
}

void plural(CUdeviceptr address, CUdeviceptr base) {
  std::vector<CUpointer_attribute> attributes;
  std::vector<unsigned long long> data(2 * kLastAttribute, 0);
  std::vector<void*> values;
  for (int attribute = 1; attribute <= kLastAttribute; ++attribute) {
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) continue;  // obsolete, a structure
    values.push_back(&data[2 * attributes.size()]);
    attributes.push_back(static_cast<CUpointer_attribute>(attribute));
  }
  std::printf("  plural: %d\n",
              static_cast<int>(cuPointerGetAttributes(static_cast<unsigned>(attributes.size()),
                                                      attributes.data(), values.data(), address)));
  for (size_t i = 0; i < attributes.size(); ++i) {
    std::printf("  plural %d:", static_cast<int>(attributes[i]));
    print_value(attributes[i], &data[2 * i], base);
    std::printf("\n");
  }
}

void range(CUdeviceptr address, CUdeviceptr base) {
  CUdeviceptr found = 0;
  size_t size = 0;
  int code = cuMemGetAddressRange(&found, &size, address);
  std::printf("  range: %d", code);
  if (code == 0) std::printf(" base%+lld size %zu", static_cast<long long>(found - base), size);
  std::printf("\n");
  code = cuMemGetAddressRange(nullptr, &size, address);
  std::printf("  range, size alone: %d %zu\n", code, code == 0 ? size : 0);
  code = cuMemGetAddressRange(&found, nullptr, address);
  std::printf("  range, base alone: %d\n", code);
}

void runtime(CUdeviceptr address) {
  cudaPointerAttributes attributes{};
  const int code = cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(address));
  std::printf("  runtime: %d type %d device %d, device pointer %s, host pointer %s\n", code,
              static_cast<int>(attributes.type), attributes.device,
              attributes.devicePointer == nullptr ? "null" : "set",
              attributes.hostPointer == nullptr ? "null" : "set");
  std::printf("  last error %d\n", static_cast<int>(cudaGetLastError()));
}

void ask(const char* what, CUdeviceptr address, CUdeviceptr base) {
  std::printf("%s\n", what);
  singular(address, base);
  plural(address, base);
  range(address, base);
  runtime(address);
}

CUdeviceptr device_address(const void* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

void blocks_of(size_t size) {
  void* before = nullptr;
  void* p = nullptr;
  void* after = nullptr;
  // One that was served before, so that the next may come from the cache.
  MUST(cudaMalloc(&before, size));
  MUST(cudaFree(before));
  MUST(cudaMalloc(&p, size));
  MUST(cudaMalloc(&after, size));
  const CUdeviceptr base = device_address(p);
  CHECK(base % 512 == 0);
  if (size >= 2 * kMiB) CHECK(base % (2 * kMiB) == 0);
  std::printf("size %zu\n", size);
  ask("live", base, base);
  ask("inside", base + size / 2, base);
  ask("last byte", base + size - 1, base);
  // What a block is rounded up to is nobody's.
  if (size % 512 != 0) ask("past the end", base + size, base);
  unsigned int yes = 1;
  MUST(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base));
  ask("with synchronous operations", base, base);
  MUST(cudaFree(after));
  MUST(cudaFree(p));
  ask("freed", base, base);
  ask("inside freed", base + size / 2, base);
}

}  // namespace

int main() {
  MUST(cudaFree(nullptr));
  for (const size_t size : {size_t{1}, size_t{513}, size_t{100} * 1000, 2 * kMiB, 5 * kMiB + 3}) {
    blocks_of(size);
  }
  void* p = nullptr;
  size_t pitch = 0;
  for (int round = 0; round < 2; ++round) {
    MUST(cudaMallocPitch(&p, &pitch, 1000, 50));
    std::printf("pitch %zu\n", pitch);
    ask("pitched", device_address(p), device_address(p));
    MUST(cudaFree(p));
  }
  // None of cudaMalloc's.
  int on_stack = 0;
  ask("host memory", device_address(&on_stack), device_address(&on_stack));
  ask("null", 0, 0);
  ask("nothing there", 4096, 4096);
  MUST(cudaMallocHost(&p, 5000));
  ask("pinned", device_address(p) + 100, device_address(p));
  MUST(cudaFreeHost(p));
  MUST(cudaMallocManaged(&p, 5000, cudaMemAttachGlobal));
  ask("managed", device_address(p) + 100, device_address(p));
  MUST(cudaFree(p));
  if (cudaMallocAsync(&p, 5000, nullptr) == cudaSuccess) {
    ask("of the program's pool", device_address(p) + 100, device_address(p));
    MUST(cudaFreeAsync(p, nullptr));
  }
  unsigned long long ignored[2] = {0, 0};
  std::printf("null value: %d\n",
              static_cast<int>(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_CONTEXT, 0)));
  std::printf("no such attribute: %d\n",
              static_cast<int>(cuPointerGetAttribute(ignored, static_cast<CUpointer_attribute>(99),
                                                     device_address(&on_stack))));
  std::printf("no attributes: %d\n",
              static_cast<int>(cuPointerGetAttributes(1, nullptr, nullptr, 4096)));
  return 0;
}
