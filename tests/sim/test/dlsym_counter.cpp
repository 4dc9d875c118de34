// SPDX-License-Identifier: Apache-2.0
// Interposes dlsym, as cupool does, and counts the names of CUDA that are looked up. Sanitizers
// look up names before they are ready, so this file is compiled without them and uses no library;
// it is optimised so that the last call is a jump, because glibc resolves RTLD_NEXT by the return
// address of the caller (dlsym(3)).
#include <dlfcn.h>

extern "C" {

extern int cuda_names_looked_up;
extern char last_cuda_name[64];
int cuda_names_looked_up = 0;
char last_cuda_name[64] = "";

__attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) noexcept {
  using Dlsym = void* (*)(void*, const char*) noexcept;
  static Dlsym real;
  if (real == nullptr) {
    void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    real = reinterpret_cast<Dlsym>(found);
  }
  if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') {
    ++cuda_names_looked_up;
    for (int i = 0; i < 63; ++i) {
      last_cuda_name[i] = name[i];
      last_cuda_name[i + 1] = 0;
      if (name[i] == 0) break;
    }
  }
  return real(handle, name);
}

}  // extern "C"
