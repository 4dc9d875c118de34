// SPDX-License-Identifier: Apache-2.0
// Kernels that may begin before the kernel before them in their stream has ended (programmatic
// dependent launches), behind a free. The driver's own free waits, so that nothing is left to
// overlap; but for "stream_ordered", every way is right without cupool.
//
//   probe_dependent_launches WAY
// PROBE_KERNELS names the file of its kernels on a real GPU; the simulated device has them built
// in. Prints how many of the blocks were handed out again while a kernel still wrote them.
#include <cuda.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "probe.h"

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr uint64_t kWords = kBytes / 4;
constexpr uint64_t kLateNs = 20'000'000;
constexpr uint32_t kRounds = 6;
constexpr uint32_t kFirstValue = 10;

CUcontext context = nullptr;
CUmodule module = nullptr;
CUdeviceptr results = 0;
CUdeviceptr out = 0;
uint64_t mallocs = 0;
uint64_t frees = 0;
long reused = 0;

CUdeviceptr allocate() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  ++mallocs;
  return block;
}

void release(CUdeviceptr block) {
  MUST(cuMemFree(block));
  ++frees;
}

CUstream stream() {
  CUstream created = nullptr;
  MUST(cuStreamCreate(&created, CU_STREAM_NON_BLOCKING));
  return created;
}

void load_kernels() {
  const char* const file = std::getenv("PROBE_KERNELS");
  MUST(file == nullptr ? cuModuleLoadData(&module, "") : cuModuleLoad(&module, file));
}

CUfunction kernel(const char* name) {
  CUfunction function = nullptr;
  MUST(cuModuleGetFunction(&function, module, name));
  return function;
}

// The pools have started, the thread has a cache, and the process its main stream.
void warm_up(CUstream in) {
  uint64_t ns = 1;
  void* arguments[] = {&ns};
  for (int i = 0; i < 8; ++i) {
    MUST(cuLaunchKernel(kernel("spin_ns"), 1, 1, 1, 1, 1, 1, 0, in, arguments, nullptr));
  }
  for (int i = 0; i < 16; ++i) release(allocate());
  MUST(cuCtxSynchronize());
}

// A kernel that permits the next one to begin, and writes late.
void late_stamp(CUdeviceptr block, uint32_t value, CUstream to) {
  uint64_t words = kWords;
  uint64_t ns = kLateNs;
  void* arguments[] = {&block, &words, &value, &ns};
  MUST(cuLaunchKernel(kernel("late_stamp_u32"), 16, 1, 1, 256, 1, 1, 0, to, arguments, nullptr));
}

void launch_dependent(const char* name, CUstream to, void** arguments) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig shape = {};
  shape.gridDimX = 16;
  shape.gridDimY = shape.gridDimZ = 1;
  shape.blockDimX = 256;
  shape.blockDimY = shape.blockDimZ = 1;
  shape.hStream = to;
  shape.attrs = &attribute;
  shape.numAttrs = 1;
  MUST(cuLaunchKernelEx(&shape, kernel(name), arguments, nullptr));
}

void stamp_early(CUdeviceptr block, uint32_t value, CUstream to) {
  uint64_t words = kWords;
  void* arguments[] = {&block, &words, &value};
  launch_dependent("stamp_u32", to, arguments);
}

void copy_early(CUdeviceptr to_block, CUdeviceptr from, CUstream to) {
  uint64_t words = kWords;
  void* arguments[] = {&to_block, &from, &words};
  launch_dependent("copy_u32", to, arguments);
}

// Read in the same stream: another one would leave the lane.
bool is_right(CUdeviceptr block, uint32_t value, CUstream in) {
  MUST(cuCtxSynchronize());
  std::vector<uint32_t> host(kWords);
  MUST(cuMemcpyDtoHAsync(host.data(), block, kBytes, in));
  MUST(cuStreamSynchronize(in));
  return host.front() == value && host.back() == value;
}

// Results, and a free of something else. What the thread does next finds them.
bool behind_a_free(uint32_t value, CUstream first, CUstream second) {
  const CUdeviceptr temporary = allocate();
  late_stamp(results, value, first);
  release(temporary);
  copy_early(out, results, second);
  return is_right(out, value, second);
}

// A block that a kernel writes late, and its next owner.
bool in_a_block(uint32_t value, CUstream in) {
  if (value == kFirstValue) warm_up(in);
  const CUdeviceptr block = allocate();
  late_stamp(block, value, in);
  release(block);
  const CUdeviceptr next = allocate();
  if (next == block) ++reused;
  stamp_early(next, value + 1, in);
  const bool right = is_right(next, value + 1, in);
  release(next);
  return right;
}

bool round_of(const std::string& way, uint32_t value) {
  static CUstream const first = stream();
  static CUstream const second = stream();
  if (way == "free") return behind_a_free(value, first, first);
  if (way == "free_legacy") return behind_a_free(value, CU_STREAM_LEGACY, CU_STREAM_LEGACY);
  if (way == "free_per_thread") {
    return behind_a_free(value, CU_STREAM_PER_THREAD, CU_STREAM_PER_THREAD);
  }
  if (way == "free_elsewhere") {  // behind a kernel of its own stream
    late_stamp(out, 1, second);
    return behind_a_free(value, first, second);
  }
  if (way == "second_free") {  // the launch behind the first free is no help
    const CUdeviceptr temporary = allocate();
    copy_early(out, results, first);
    release(temporary);
    copy_early(out, results, first);
    return behind_a_free(value, first, first);
  }
  if (way == "block") return in_a_block(value, first);
  if (way == "block_legacy") return in_a_block(value, CU_STREAM_LEGACY);
  if (way == "stream_ordered") {  // its own next block, in the order of the stream
    CUdeviceptr block = 0;
    CUdeviceptr next = 0;
    MUST(cuMemAllocAsync(&block, kBytes, first));
    late_stamp(block, value, first);
    MUST(cuMemFreeAsync(block, first));
    MUST(cuMemAllocAsync(&next, kBytes, first));
    if (next == block) ++reused;
    stamp_early(next, value + 1, first);
    const bool right = is_right(next, value + 1, first);
    MUST(cuMemFreeAsync(next, first));
    return right;
  }
  if (way == "default_streams") {  // one handle, another stream in each context
    // The second context leaves the lane for good: the first round counts.
    if (value == kFirstValue) warm_up(CU_STREAM_LEGACY);
    const CUdeviceptr block = allocate();
    late_stamp(block, value, CU_STREAM_LEGACY);
    release(block);
    CUcontext other = nullptr;
    CUmodule const home = module;
    MUST(cuCtxCreate(&other, nullptr, 0, 0));
    load_kernels();
    const CUdeviceptr there = allocate();
    stamp_early(there, 1, CU_STREAM_LEGACY);
    MUST(cuCtxSetCurrent(context));
    module = home;
    const CUdeviceptr next = allocate();
    if (next == block) ++reused;
    stamp_early(next, value + 1, CU_STREAM_LEGACY);
    const bool right = is_right(next, value + 1, CU_STREAM_LEGACY);
    release(next);
    release(there);
    MUST(cuCtxDestroy(other));
    return right;
  }
  probe::fail_check("unknown way", __FILE__, __LINE__);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  load_kernels();
  results = allocate();
  out = allocate();
  long wrong = 0;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    wrong += !round_of(way, kFirstValue * round);
  }
  release(results);
  release(out);
  probe::say("wrong", wrong);
  if (std::getenv("PROBE_REUSED") != nullptr) probe::say("reused", reused);
  probe::print_counts(mallocs, frees);
  return wrong == 0 ? 0 : probe::kWrongResult;
}
