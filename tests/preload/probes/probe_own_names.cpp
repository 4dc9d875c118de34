// SPDX-License-Identifier: Apache-2.0
// A program that defines functions of CUDA's and of MPI's names itself, as one does that brings its
// runtime or a tool around MPI, and looks them up.
#include <dlfcn.h>

#include "probe.h"

#define OWN(name)                                                     \
  extern "C" __attribute__((visibility("default"))) int name(void*) { \
    return 42;                                                        \
  }
OWN(cuMemAlloc_v2)
OWN(cuMemFree_v2)
OWN(cudaMalloc)
OWN(cudaFree)
OWN(MPI_Send)
OWN(PMPI_Wait)

int main() {
  using Function = int (*)(void*);
  void* const program = dlopen(nullptr, RTLD_NOW);
  CHECK(program != nullptr);
  for (const char* name :
       {"cuMemAlloc_v2", "cuMemFree_v2", "cudaMalloc", "cudaFree", "MPI_Send", "PMPI_Wait"}) {
    for (void* const handle : {static_cast<void*>(RTLD_DEFAULT), program}) {
      const auto function = reinterpret_cast<Function>(dlsym(handle, name));
      std::printf("%s in %s: ", name, handle == program ? "the program" : "all");
      std::printf("%d\n", function == nullptr ? 0 : function(nullptr));
    }
    std::printf("next %s null: %d\n", name, dlsym(RTLD_NEXT, name) == nullptr);
  }
  return 0;
}
