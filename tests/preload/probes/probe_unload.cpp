// SPDX-License-Identifier: Apache-2.0
// Libraries that come and go: one whose allocations pass through and one whose are served, in
// turns, mapped at the same place. Both have the same code, so that their calls return to the same
// addresses.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "probe.h"

namespace {

bool plain(const void* p) {
  unsigned int capable = 0;
  MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                             reinterpret_cast<CUdeviceptr>(p)));
  return capable != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1);
  const std::string kind = probe::argument(argc, argv, "runtime", "shared");
  void* own = nullptr;
  MUST(cudaMalloc(&own, 1));
  const void* before = nullptr;
  int same_place = 0;
  int wrong = 0;
  for (int round = 0; round < 20; ++round) {
    const bool passes = round % 2 == 1;
    const std::string file = folder + (passes ? "libnccl-net_" : "libnet_") + kind + ".so";
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    const auto allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(library, "net_malloc"));
    const auto release = reinterpret_cast<int (*)(void*)>(dlsym(library, "net_free"));
    CHECK(allocate != nullptr && release != nullptr);
    const auto* const place = reinterpret_cast<const void*>(allocate);
    same_place += place == before;
    before = place;
    for (int i = 0; i < 3; ++i) {
      void* p = nullptr;
      MUST(allocate(&p, 100000));
      wrong += plain(p) != passes;
      MUST(release(p));
    }
    CHECK(dlclose(library) == 0);
  }
  MUST(cudaFree(own));
  std::printf("at the same place %s, wrong %d\n", same_place > 0 ? "again" : "never", wrong);
  return 0;
}
