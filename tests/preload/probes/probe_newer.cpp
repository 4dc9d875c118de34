// SPDX-License-Identifier: Apache-2.0
// A program for a later CUDA than 13.0, which takes functions that came since from cuGetProcAddress
// or, with route=dlsym, by their names. Argument way=
//   linear, boxes, host: so long as a copy or a host function runs, the block it takes part in is
//     freed and what it does is looked at: the free has waited for it;
//   recapture: frees while a stream captures into a graph that was captured before;
//   version, kind: calls a function that is newer than everything else here, another version of a
//     known one or one that is new altogether; with asked=1 it only asks for it;
//   early: calls it with nothing allocated; asks for names that only look like such functions, and
//     again and again.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <string>

#include "probe.h"

namespace {

constexpr int kRounds = 12;
constexpr int kNewest = 99000;
constexpr size_t kBytes = 4096;

void* library = nullptr;
bool by_name = false;

void* named(const char* symbol) {
  void* const function = dlsym(library, symbol);
  CHECK(function != nullptr);
  return function;
}

// The function that a program compiled for `version` calls by `base`.
void* find(const char* base, const char* symbol, int version) {
  if (by_name) return named(symbol);
  static const auto query =
      reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t, void*)>(
          named("cuGetProcAddress_v2"));
  void* function = nullptr;
  MUST(query(base, &function, version, 0, nullptr));
  CHECK(function != nullptr);
  return function;
}

#define KNOWN(name, symbol) \
  decltype(&name) name##_fn = reinterpret_cast<decltype(&name)>(named(symbol))

struct Driver {
  KNOWN(cuInit, "cuInit");
  KNOWN(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  KNOWN(cuCtxSetCurrent, "cuCtxSetCurrent");
  KNOWN(cuCtxSynchronize, "cuCtxSynchronize");
  KNOWN(cuMemAlloc, "cuMemAlloc_v2");
  KNOWN(cuMemFree, "cuMemFree_v2");
  KNOWN(cuMemHostAlloc, "cuMemHostAlloc");
  KNOWN(cuMemHostRegister, "cuMemHostRegister_v2");
  KNOWN(cuMemsetD8Async, "cuMemsetD8Async");
  KNOWN(cuStreamCreate, "cuStreamCreate");
  KNOWN(cuStreamBeginCapture, "cuStreamBeginCapture_v2");
  KNOWN(cuStreamEndCapture, "cuStreamEndCapture");
  KNOWN(cuGraphInstantiate, "cuGraphInstantiateWithFlags");
  KNOWN(cuGraphLaunch, "cuGraphLaunch");
};

uint64_t mallocs = 0;
alignas(4096) uint64_t words[512];

CUdeviceptr allocate(const Driver& driver) {
  CUdeviceptr block = 0;
  MUST(driver.cuMemAlloc_fn(&block, kBytes));
  ++mallocs;
  return block;
}

// `submit(block)` has the block's bytes copied to the host, or the like; `seen()` says what came.
template <typename Submit, typename Seen>
void free_at_once(const Driver& driver, CUstream stream, const Submit& submit, const Seen& seen) {
  for (int i = 1; i <= kRounds; ++i) {
    const CUdeviceptr block = allocate(driver);
    MUST(driver.cuMemsetD8Async_fn(block, static_cast<unsigned char>(i), kBytes, stream));
    MUST(submit(block));
    MUST(driver.cuMemFree_fn(block));
    std::printf("round %d: %d\n", i, seen());
  }
}

void copies(const Driver& driver, CUstream stream, const std::string& way) {
  void* memory = nullptr;
  MUST(driver.cuMemHostAlloc_fn(&memory, kBytes, 0));
  auto* const host = static_cast<unsigned char*>(memory);
  const auto to = reinterpret_cast<CUdeviceptr>(memory);
  const auto seen = [&] { return static_cast<int>(host[kBytes - 1]); };
  if (way == "linear") {
    using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes*, CUstream);
    const auto copy = reinterpret_cast<Copy>(
        find("cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync", 13020));
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    free_at_once(
        driver, stream,
        [&](CUdeviceptr block) { return copy(to, block, kBytes, &attributes, stream); }, seen);
  } else if (way == "boxes") {
    using Copy = CUresult (*)(CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream);
    const auto copy = reinterpret_cast<Copy>(
        find("cuMemcpy3DWithAttributesAsync", "cuMemcpy3DWithAttributesAsync", 13020));
    CUDA_MEMCPY3D_BATCH_OP operation{};
    operation.src.type = operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    operation.dst.op.ptr.ptr = to;
    operation.extent = {kBytes, 1, 1};
    operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    free_at_once(
        driver, stream,
        [&](CUdeviceptr block) {
          operation.src.op.ptr.ptr = block;
          return copy(&operation, 0, stream);
        },
        seen);
  } else {
    using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream, unsigned long long,
                              double, unsigned long long, unsigned long long);
    using New = CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    const bool version = way == "version";
    void* const function = version
                               ? find("cuMemcpyAsync", "cuMemcpyAsync_v9", kNewest)
                               : find("cuMemcpyTomorrowAsync", "cuMemcpyTomorrowAsync", kNewest);
    free_at_once(
        driver, stream,
        [&](CUdeviceptr block) {
          return version ? reinterpret_cast<Copy>(function)(to, block, kBytes, stream, 5, 6.5, 7, 8)
                         : reinterpret_cast<New>(function)(to, block, kBytes, stream);
        },
        seen);
  }
}

void host_functions(const Driver& driver, CUstream stream) {
  using Launch = CUresult (*)(CUstream, CUhostFn, void*, unsigned int);
  const auto launch =
      reinterpret_cast<Launch>(find("cuLaunchHostFunc", "cuLaunchHostFunc_v2", 13010));
  std::printf("a mode that is none: %d\n", launch(
                                               stream, [](void*) {}, nullptr, 7));
  std::atomic<int> calls{0};
  const auto count = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
  free_at_once(
      driver, stream, [&](CUdeviceptr) { return launch(stream, count, &calls, 1); },
      [&] { return calls.load(); });
}

// Page-locked memory is copied to page-locked memory.
void early(const Driver& driver, CUstream stream) {
  using New = CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
  void* memory = nullptr;
  MUST(driver.cuMemHostRegister_fn(&words, sizeof words, 0));
  memory = words;
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  New function = nullptr;
  for (int i = 0; i < 3; ++i) {
    const auto again =
        reinterpret_cast<New>(find("cuMemcpyTomorrowAsync", "cuMemcpyTomorrowAsync", kNewest));
    CHECK(i == 0 || again == function);
    function = again;
  }
  words[0] = 7;
  MUST(function(at + 8, at, 8, stream));
  MUST(driver.cuCtxSynchronize_fn());
  std::printf("copied %d\n", static_cast<int>(words[1]));
  for (const char* name :
       {"cu", "cu1MemcpyAsync", "cu_memcpyAsync", "cuA", "cuLaunchNever_v", "cuLaunchNever_v2x",
        "cuLaunchNever_ptds", "cuNeverAsync", "cuNever", "cuMemcpyAsync_v9_ptds", "cupoolNever"}) {
    std::printf("%s %d\n", name, dlsym(library, name) != nullptr);
    std::printf("%s of all %d\n", name, dlsym(RTLD_DEFAULT, name) != nullptr);
  }
  std::printf("of all %d\n", dlsym(RTLD_DEFAULT, "cuMemcpyTomorrowAsync") != nullptr);
}

void recapture(const Driver& driver, CUstream stream) {
  using Begin = CUresult (*)(CUstream, CUstreamCaptureMode, CUgraph, void*, void*);
  const auto begin = reinterpret_cast<Begin>(
      find("cuStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph", 13030));
  CUstream other = nullptr;
  MUST(driver.cuStreamCreate_fn(&other, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr block = allocate(driver);
  CUgraph graph = nullptr;
  MUST(driver.cuStreamBeginCapture_fn(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(driver.cuMemsetD8Async_fn(block, 1, kBytes, stream));
  MUST(driver.cuStreamEndCapture_fn(stream, &graph));
  for (int i = 0; i < kRounds; ++i) {
    MUST(begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, nullptr, nullptr));
    MUST(driver.cuMemsetD8Async_fn(block, 2, kBytes, stream));
    for (int pair = 0; pair < 50; ++pair) {
      const CUdeviceptr mine = allocate(driver);
      MUST(driver.cuMemsetD8Async_fn(mine, 3, kBytes, other));
      MUST(driver.cuMemFree_fn(mine));
    }
    CUgraph same = nullptr;
    std::printf("end %d\n", driver.cuStreamEndCapture_fn(stream, &same));
    CHECK(same == graph);
  }
  CUgraphExec exec = nullptr;
  MUST(driver.cuGraphInstantiate_fn(&exec, graph, 0));
  MUST(driver.cuGraphLaunch_fn(exec, stream));
  MUST(driver.cuCtxSynchronize_fn());
  MUST(driver.cuMemFree_fn(block));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = probe::argument(argc, argv, "way", "");
  by_name = probe::argument_is(argc, argv, "route", "dlsym");
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  const Driver driver;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  MUST(driver.cuInit_fn(0));
  MUST(driver.cuDevicePrimaryCtxRetain_fn(&context, 0));
  MUST(driver.cuCtxSetCurrent_fn(context));
  MUST(driver.cuStreamCreate_fn(&stream, CU_STREAM_NON_BLOCKING));
  if (probe::number(argc, argv, "asked", 0) != 0) {
    find("cuMemcpyAsync", "cuMemcpyAsync_v9", kNewest);
    for (int i = 0; i < kRounds; ++i) MUST(driver.cuMemFree_fn(allocate(driver)));
  } else if (way == "early") {
    early(driver, stream);
    return 0;
  } else if (way == "host") {
    host_functions(driver, stream);
  } else if (way == "recapture") {
    recapture(driver, stream);
  } else {
    copies(driver, stream, way);
  }
  probe::print_counts(mallocs, mallocs);
  return 0;
}
