// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out within the library: its n-th request fails (n=), or with all=1 each
// from the n-th on. when=first: from the program's first call on; when=start: in its first
// allocation; when=later: beside frees, misses and queries for memory; when=idle: while idle memory
// goes back; when=refused: in calls that run out of device memory; when=contexts: with contexts
// that come and end; when=threads: with threads that end; when=captures; when=host: with
// page-locked, managed and stream-ordered memory. Says how many requests there were.
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
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

CUcontext make_context() {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  MUST(cuCtxCreate(&context, nullptr, 0, 0));
#else
  MUST(cuCtxCreate(&context, 0, 0));
#endif
  return context;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // as programs that use them see them
void attach_and_detach() {
  CUcontext attached = nullptr;
  probe::say("attach", cuCtxAttach(&attached, 0));
  probe::say("detach", cuCtxDetach(attached));
}
#pragma GCC diagnostic pop

// Some blocks are live when their context ends, some are idle, some are just freed.
void end_contexts() {
  for (int i = 0; i < 3; ++i) {
    const CUcontext context = make_context();
    CUdeviceptr blocks[8] = {};
    for (size_t block = 0; block < 8; ++block) {
      probe::say("block", cuMemAlloc(&blocks[block], (block + 1) * 300'000));
    }
    for (int freed = 0; freed < 4; ++freed) probe::say("free", cuMemFree(blocks[freed]));
    probe::say("wait", cuCtxSynchronize());
    probe::say("again", cuMemAlloc(&blocks[0], 300'000));
    attach_and_detach();
    probe::say("alive", cuMemFree(blocks[4]));
    probe::say("end", cuCtxDestroy(context));
  }
  CUcontext primary = nullptr;
  CUdeviceptr block = 0;
  probe::say("retain", cuDevicePrimaryCtxRetain(&primary, 0));
  probe::say("push", cuCtxPushCurrent(primary));
  probe::say("block", cuMemAlloc(&block, 4096));
  probe::say("pop", cuCtxPopCurrent(&primary));
  probe::say("reset", cuDevicePrimaryCtxReset(0));
}

void end_threads(CUcontext context) {
  for (int i = 0; i < 3; ++i) {
    std::thread([context] {
      CUdeviceptr blocks[8] = {};
      probe::say("current", cuCtxSetCurrent(context));
      for (CUdeviceptr& block : blocks) probe::say("block", cuMemAlloc(&block, 4096));
      for (const CUdeviceptr block : blocks) probe::say("free", cuMemFree(block));
    }).join();
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  probe::say("memory", cuMemGetInfo(&free_bytes, &total_bytes));
}

// More at once than a program usually has.
void capture() {
  constexpr int kStreams = 12;
  CUstream streams[kStreams] = {};
  for (CUstream& each : streams) {
    probe::say("stream", cuStreamCreate(&each, CU_STREAM_NON_BLOCKING));
    probe::say("begin", cuStreamBeginCapture(each, CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  CUdeviceptr block = 0;
  probe::say("block", cuMemAlloc(&block, 5'000'000));
  probe::say("free", cuMemFree(block));
  for (const CUstream each : streams) {
    CUgraph graph = nullptr;
    probe::say("end", cuStreamEndCapture(each, &graph));
    probe::say("destroy", cuGraphDestroy(graph));
    probe::say("stream ends", cuStreamDestroy(each));
  }
  allocate_and_free(4);
}

void use_other_memory() {
  CUstream stream = nullptr;
  probe::say("stream", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 4; ++i) {
    void* host = nullptr;
    CUdeviceptr block = 0;
    CUdeviceptr other = 0;
    size_t pitch = 0;
    static char own[8192];
    probe::say("host", cuMemHostAlloc(&host, 5000, 0));
    probe::say("block", cuMemAlloc(&block, 5000));
    probe::say("copy", cuMemcpyHtoDAsync(block, host, 5000, stream));
    probe::say("free", cuMemFree(block));
    probe::say("host free", cuMemFreeHost(host));
    probe::say("register", cuMemHostRegister(own, sizeof own, 0));
    probe::say("unregister", cuMemHostUnregister(own));
    probe::say("managed", cuMemAllocManaged(&block, 5000, CU_MEM_ATTACH_GLOBAL));
    probe::say("managed free", cuMemFree(block));
    probe::say("in order", cuMemAllocAsync(&block, 5000, stream));
    probe::say("another", cuMemAllocAsync(&other, 5'000'000, stream));
    probe::say("in order free", cuMemFreeAsync(block, stream));
    probe::say("wait", cuStreamSynchronize(stream));
    probe::say("free", cuMemFree(other));
    probe::say("pitch", cuMemAllocPitch(&block, &pitch, 1000, 10, 4));
    probe::say("free", cuMemFree(block));
  }
  probe::say("stream ends", cuStreamDestroy(stream));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* malloc(size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
}

int main(int argc, char** argv) {
  fails_at = probe::number(argc, argv, "n", 0);
  fails_on = probe::number(argc, argv, "all", 0) != 0;
  CUcontext context = nullptr;
  find_library();
  counts = probe::argument_is(argc, argv, "when", "first");
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  if (!counts && !probe::argument_is(argc, argv, "when", "start")) {
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
  } else if (probe::argument_is(argc, argv, "when", "contexts")) {
    end_contexts();
  } else if (probe::argument_is(argc, argv, "when", "threads")) {
    end_threads(context);
  } else if (probe::argument_is(argc, argv, "when", "captures")) {
    capture();
  } else if (probe::argument_is(argc, argv, "when", "host")) {
    use_other_memory();
  } else if (probe::argument_is(argc, argv, "when", "idle")) {
    usleep(300'000);
  } else {
    allocate_and_free(probe::argument_is(argc, argv, "when", "later") ? 60 : 2);
  }
  counts = false;
  if (library_begin != 0) std::fprintf(stderr, "requests %ld\n", requests.load());
  return 0;
}
