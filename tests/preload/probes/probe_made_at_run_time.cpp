// SPDX-License-Identifier: Apache-2.0
// Calls of the runtime from code that is made at run time, which is in no object of the process,
// and has no libraries of its own. runtime=
//   global, local: a library brings the runtime, for all to see or for itself alone; with host=1
//     page-locked memory is allocated, too;
//   none: there is no runtime, and the calls are weak references.
// beside=1: another thread loads libraries meanwhile, and each call is made by code of its own.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>

#include "probe.h"
#include "thunk.h"

extern "C" {
using CudaError = int;
struct Pitched {
  void* pointer;
  std::size_t pitch, width, height;
};
struct Extent {
  std::size_t width, height, depth;
};
#define WEAK __attribute__((weak))
WEAK CudaError cudaMalloc(void**, std::size_t);
WEAK CudaError cudaMallocPitch(void**, std::size_t*, std::size_t, std::size_t);
WEAK CudaError cudaMalloc3D(Pitched*, Extent);
WEAK CudaError cudaFree(void*);
WEAK CudaError cudaMallocHost(void**, std::size_t);
WEAK CudaError cudaHostAlloc(void**, std::size_t, unsigned);
WEAK CudaError cudaFreeHost(void*);
WEAK CudaError cudaDeviceSynchronize();
}

namespace {

constexpr int kRounds = 30;

int without_runtime() {
  CudaError (*volatile malloc)(void**, std::size_t) = &cudaMalloc;
  if (malloc == nullptr) {
    std::printf("no runtime\n");
    return 0;
  }
  void* memory = nullptr;
  std::size_t pitch = 0;
  Pitched pitched{};
  // Twice: what was not found is looked for again.
  const CudaError first = malloc(&memory, 4096);
  const CudaError second = malloc(&memory, 4096);
  std::printf("malloc %d %d pitch %d 3d %d free %d", first, second,
              cudaMallocPitch(&memory, &pitch, 512, 8), cudaMalloc3D(&pitched, {512, 8, 2}),
              cudaFree(nullptr));
  const CudaError plain = cudaMallocHost(&memory, 4096);
  const CudaError flagged = cudaHostAlloc(&memory, 4096, 0);
  std::printf(" host %d %d %d synchronize %d\n", plain, flagged, cudaFreeHost(nullptr),
              cudaDeviceSynchronize());
  CHECK(memory == nullptr && pitched.pointer == nullptr);
  return 0;
}

template <typename Function>
Function* made(void* library, const char* name) {
  const auto find = reinterpret_cast<void* (*)(const char*)>(dlsym(library, "runtime_function"));
  CHECK(find != nullptr);
  void* const function = find(name);
  CHECK(function != nullptr);
  return probe::thunk(reinterpret_cast<Function*>(function));
}

int beside_loads(void* library, const std::string& folder) {
  constexpr int kCallers = 400;
  std::atomic<bool> stopped{false};
  std::thread loads([&] {
    while (!stopped) {
      void* const other = dlopen((folder + "libquery_a.so").c_str(), RTLD_NOW | RTLD_LOCAL);
      CHECK(other != nullptr);
      dlclose(other);
    }
  });
  for (int i = 0; i < kCallers; ++i) {
    void* device = nullptr;
    MUST(made<CudaError(void**, std::size_t)>(library, "cudaMalloc")(&device, 4096));
    MUST(made<CudaError(void*)>(library, "cudaFree")(device));
  }
  stopped = true;
  loads.join();
  std::printf("called by %d\n", 2 * kCallers);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (probe::argument_is(argc, argv, "runtime", "none")) return without_runtime();
  const int scope = probe::argument_is(argc, argv, "runtime", "global") ? RTLD_GLOBAL : RTLD_LOCAL;
  const bool host = probe::number(argc, argv, "host", 0) != 0;
  const std::string self = argv[0];
  const std::string folder = self.substr(0, self.rfind('/') + 1);
  void* const library = dlopen((folder + "libruntime_functions.so").c_str(), RTLD_NOW | scope);
  CHECK(library != nullptr);
  auto* const malloc = made<CudaError(void**, std::size_t)>(library, "cudaMalloc");
  auto* const free = made<CudaError(void*)>(library, "cudaFree");
  auto* const malloc_host = made<CudaError(void**, std::size_t)>(library, "cudaMallocHost");
  auto* const free_host = made<CudaError(void*)>(library, "cudaFreeHost");
  auto* const synchronize = made<CudaError()>(library, "cudaDeviceSynchronize");
  if (probe::number(argc, argv, "beside", 0) != 0) return beside_loads(library, folder);
  for (int i = 0; i < kRounds; ++i) {
    void* device = nullptr;
    void* memory = nullptr;
    MUST(malloc(&device, 4096));
    if (host) {
      MUST(malloc_host(&memory, 8192));
      std::memset(memory, i, 8192);
      MUST(free_host(memory));
    }
    MUST(free(device));
  }
  MUST(synchronize());
  std::printf("null %d, no memory of CUDA %d\n", malloc(nullptr, 64), free(&argc));
  probe::print_counts(kRounds, kRounds + 1);
  return 0;
}
