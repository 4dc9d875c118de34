// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out within the library: its n-th request fails (n=), or with all=1 each
// from the n-th on. when=start: in its first allocation; when=later: beside frees, misses and
// queries for memory; when=idle: while idle memory goes back; when=refused: in calls that run out
// of device memory. Says how many requests there were.
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "probe.h"

extern "C" void* __libc_malloc(size_t);

namespace {

std::uintptr_t library_begin = 0;
std::uintptr_t library_end = 0;
std::atomic<bool> counts{false};
std::atomic<long> requests{0};
long fails_at = 0;
bool fails_on = false;

void find_library() {
  const void* const inside = dlsym(RTLD_DEFAULT, "cupool_version");
  if (inside == nullptr) return;
  const auto note = [](dl_phdr_info* object, size_t, void* data) {
    const std::uintptr_t begin = object->dlpi_addr;
    std::uintptr_t end = begin;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& header = object->dlpi_phdr[i];
      if (header.p_type == PT_LOAD) end = begin + header.p_vaddr + header.p_memsz;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address < begin || address >= end) return 0;
    library_begin = begin;
    library_end = end;
    return 1;
  };
  dl_iterate_phdr(note, const_cast<void*>(inside));
}

bool fails(const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  if (!counts || address < library_begin || address >= library_end) return false;
  const long number = ++requests;
  return fails_on ? number >= fails_at : number == fails_at;
}

// One at a time, then many together: all sizes differ, so each is a miss.
void allocate_and_free(int count) {
  std::vector<CUdeviceptr> blocks(static_cast<size_t>(count));
  CUresult first_error = CUDA_SUCCESS;
  const auto note = [&](CUresult result) {
    if (first_error == CUDA_SUCCESS) first_error = result;
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    note(cuMemAlloc(&blocks[i], (i + 1) * 300'000));
    if (first_error == CUDA_SUCCESS) note(cuMemsetD8(blocks[i], 7, 4096));
  }
  for (const CUdeviceptr block : blocks) note(cuMemFree(block));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  note(cuMemGetInfo(&free_bytes, &total_bytes));
  probe::say("answer", first_error);
}

// What is left of the device is less than each wants.
void ask_for_too_much() {
  constexpr size_t kMiB = 1 << 20;
  CUdeviceptr block = 0;
  CUdeviceptr kept[16] = {};
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR shape{1 << 15, 1 << 14, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  for (CUdeviceptr& each : kept) MUST(cuMemAlloc(&each, 50 * kMiB));
  counts = true;
  for (int i = 0; i < 2; ++i) {
    probe::say("memory", cuMemAlloc(&block, 400 * kMiB));
    probe::say("in a stream", cuMemAllocAsync(&block, 400 * kMiB, nullptr));
    probe::say("physical", cuMemCreate(&handle, 400 * kMiB, &properties, 0));
    probe::say("an array", cuArrayCreate(&array, &shape));
    MUST(cuMemFree(kept[i]));
  }
  counts = false;
  for (int i = 2; i < 16; ++i) MUST(cuMemFree(kept[i]));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* malloc(size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
}

int main(int argc, char** argv) {
  fails_at = probe::number(argc, argv, "n", 0);
  fails_on = probe::number(argc, argv, "all", 0) != 0;
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  find_library();
  if (!probe::argument_is(argc, argv, "when", "start")) {
    for (int i = 0; i < 8; ++i) {
      CUdeviceptr block = 0;
      MUST(cuMemAlloc(&block, 1 << 20));
      MUST(cuMemFree(block));
    }
  }
  if (probe::argument_is(argc, argv, "when", "refused")) ask_for_too_much();
  counts = !probe::argument_is(argc, argv, "when", "refused");
  if (!counts) {
    allocate_and_free(2);
  } else if (probe::argument_is(argc, argv, "when", "idle")) {
    usleep(300'000);
  } else {
    allocate_and_free(probe::argument_is(argc, argv, "when", "start") ? 2 : 60);
  }
  counts = false;
  if (library_begin != 0) std::fprintf(stderr, "requests %ld\n", requests.load());
  return 0;
}
