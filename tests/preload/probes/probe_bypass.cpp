// SPDX-License-Identifier: Apache-2.0
// The program and two libraries allocate in turn; each frees what another allocated. Says of each
// block whether it is the driver's plain memory (which alone is capable of legacy IPC). With
// pinned=1 they allocate page-locked memory: says how often a library got what the program had just
// freed.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

struct Library {
  int (*malloc)(void**, size_t);
  int (*malloc_pitch)(void**, size_t*, size_t, size_t);
  int (*malloc_3d)(void**, size_t, size_t);
  int (*free)(void*);
  int (*malloc_host)(void**, size_t);
  int (*free_host)(void*);
};

template <typename Function>
void find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  CHECK(*function != nullptr);
}

Library load(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) std::printf("%s\n", dlerror());
  CHECK(handle != nullptr);
  Library library{};
  find(handle, "net_malloc", &library.malloc);
  find(handle, "net_malloc_pitch", &library.malloc_pitch);
  find(handle, "net_malloc_3d", &library.malloc_3d);
  find(handle, "net_free", &library.free);
  find(handle, "net_malloc_host", &library.malloc_host);
  find(handle, "net_free_host", &library.free_host);
  return library;
}

bool plain(const void* p) {
  unsigned int capable = 0;
  MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                             reinterpret_cast<CUdeviceptr>(p)));
  return capable != 0;
}

void check_memory(void* p, size_t bytes) {
  MUST(cudaMemset(p, 0x2B, bytes));
  std::vector<unsigned char> host(bytes);
  MUST(cudaMemcpy(host.data(), p, bytes, cudaMemcpyDeviceToHost));
  CHECK(probe::count_other_bytes(host.data(), bytes, 0x2B) == 0);
}

struct Kinds {
  int own = 0;
  int library = 0;
  int blocks = 0;
};

void work(const Library& library, Kinds* kinds) {
  MUST(cudaSetDevice(0));
  for (int round = 0; round < 20; ++round) {
    const size_t bytes = size_t{600} << (round % 10);
    void* own = nullptr;
    void* theirs[3] = {};
    size_t pitch = 0;
    // What the program frees may lie ready when the library asks for the same size.
    MUST(cudaMalloc(&own, bytes));
    MUST(cudaFree(own));
    MUST(library.malloc(&theirs[0], bytes));
    MUST(library.malloc_pitch(&theirs[1], &pitch, bytes, 2));
    MUST(library.malloc_3d(&theirs[2], bytes, 2));
    MUST(cudaMalloc(&own, bytes));
    check_memory(own, bytes);
    for (void* p : theirs) {
      check_memory(p, bytes);
      kinds->library += plain(p);
      ++kinds->blocks;
    }
    kinds->own += plain(own);
    MUST(cudaFree(theirs[0]));
    MUST(cudaFree(theirs[1]));
    MUST(library.free(theirs[2]));
    MUST(library.free(own));
  }
}

int reused_pinned(const Library& library) {
  int reused = 0;
  for (int round = 0; round < 20; ++round) {
    const size_t bytes = size_t{65536} << (round % 4);
    void* own = nullptr;
    void* theirs = nullptr;
    MUST(cudaMallocHost(&own, bytes));
    MUST(cudaFreeHost(own));
    MUST(library.malloc_host(&theirs, bytes));
    std::memset(theirs, round, bytes);
    reused += theirs == own;
    MUST(library.free_host(theirs));
  }
  return reused;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1);
  // The first pitched allocation is the driver's: from it the pitch is learnt.
  void* first = nullptr;
  size_t pitch = 0;
  MUST(cudaMallocPitch(&first, &pitch, 100, 2));
  MUST(cudaFree(first));
  for (const char* name : {"shared", "static"}) {
    const Library library =
        load(folder + probe::argument(argc, argv, "library", "libnet") + "_" + name + ".so");
    if (probe::number(argc, argv, "pinned", 0) != 0) {
      std::printf("%s: %d of 20\n", name, reused_pinned(library));
      continue;
    }
    Kinds kinds;
    work(library, &kinds);
    Kinds in_thread;
    std::thread([&] { work(library, &in_thread); }).join();
    std::printf("%s: program plain %d, library plain %d of %d\n", name, kinds.own + in_thread.own,
                kinds.library + in_thread.library, kinds.blocks + in_thread.blocks);
  }
  return 0;
}
