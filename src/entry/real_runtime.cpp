// SPDX-License-Identifier: Apache-2.0
// Looks for runtime functions where the caller's own calls would lead.
#include "entry/real_runtime.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>

#include <cstring>

#include "cuda/dynamic_linker.h"
#include "entry/caller.h"

namespace cupool::entry {
namespace {

// Searches the caller's own dependencies: exact, even with several versions.
void* find_through_caller(const char* name, const void* caller) {
  Dl_info info = {};
  void* map = nullptr;
  if (dladdr1(caller, &info, &map, RTLD_DL_LINKMAP) == 0 || map == nullptr) return nullptr;
  const char* path = static_cast<link_map*>(map)->l_name;
  if (path == nullptr || *path == '\0') return nullptr;  // the program itself
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found = cuda::real_dlsym()(library, name);
  cuda::real_dlclose()(library);
  return found != nullptr && !is_own_code(found) ? found : nullptr;
}

// The path of one runtime after another. No heap: this may be the program's first call at all.
struct NextRuntime {
  std::size_t passed_over;  ///< so many before it
  char path[PATH_MAX];
};

int note_runtime(dl_phdr_info* object, std::size_t, void* data) {
  auto* next = static_cast<NextRuntime*>(data);
  const char* const path = object->dlpi_name;
  if (path == nullptr || std::strstr(path, "libcudart") == nullptr) return 0;
  if (std::strlen(path) >= sizeof next->path) return 0;
  if (next->passed_over-- != 0) return 0;
  std::strcpy(next->path, path);
  return 1;
}

// A caller without a linked runtime (under-linked, generated at run time): the first one in the
// process. Nothing is opened while the list of libraries is locked: a thread that opens one has the
// other lock of the loader, and waits for this one.
void* find_anywhere(const char* name) {
  NextRuntime next{};
  for (std::size_t i = 0;; ++i) {
    next.passed_over = i;
    if (dl_iterate_phdr(note_runtime, &next) == 0) return nullptr;
    void* const library = dlopen(next.path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* const found = cuda::real_dlsym()(library, name);
    cuda::real_dlclose()(library);
    if (found != nullptr) return found;
  }
}

// Also keeps the runtime loaded: the result is called without further checks.
int version_of_runtime(void* function) {
  Dl_info info = {};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return 0;
  void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (library == nullptr) return 0;
  int version = 0;
  using GetVersion = int (*)(int*);
  if (auto get =
          reinterpret_cast<GetVersion>(cuda::real_dlsym()(library, "cudaRuntimeGetVersion"))) {
    get(&version);
  }
  cuda::real_dlclose()(library);
  return version;
}

}  // namespace

RealRuntimeFunction resolve_runtime_function(const char* name, const void* caller) {
  RealRuntimeFunction real;
  real.function = find_through_caller(name, caller);
  if (real.function == nullptr) real.function = cuda::real_dlsym()(RTLD_NEXT, name);
  if (real.function == nullptr) real.function = find_anywhere(name);
  dlerror();  // the program must not see cupool's message
  if (real.function != nullptr) real.runtime_version = version_of_runtime(real.function);
  return real;
}

}  // namespace cupool::entry
