// Finds the real `dlsym`. It may run before any constructor (a sanitizer's start, another preload),
// so it uses no C++ runtime and keeps its result in a plain variable.
#include "cuda/dynamic_linker.h"

#include <dlfcn.h>

extern "C" {
void* cupool_real_dlsym = nullptr;
}

namespace cupool::cuda {

DlsymFunction real_dlsym() {
  void* found = __atomic_load_n(&cupool_real_dlsym, __ATOMIC_ACQUIRE);
  if (found == nullptr) {
    // dlsym moved to libc in 2.34; before, its version is the architecture's first one.
    static const char* const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (const char* version : versions) {
      found = dlvsym(RTLD_NEXT, "dlsym", version);
      if (found != nullptr) break;
    }
    __atomic_store_n(&cupool_real_dlsym, found, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<DlsymFunction>(found);
}

}  // namespace cupool::cuda
