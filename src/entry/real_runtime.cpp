// SPDX-License-Identifier: Apache-2.0
// Looks for runtime functions where the caller's own calls would lead.
#include "entry/real_runtime.h"

#include <dlfcn.h>
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

struct AnyRuntime {
  const char* name;
  void* found;
};

int look_into_runtime(dl_phdr_info* object, std::size_t, void* data) {
  auto* any = static_cast<AnyRuntime*>(data);
  if (object->dlpi_name == nullptr || std::strstr(object->dlpi_name, "libcudart") == nullptr) {
    return 0;
  }
  void* library = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  any->found = cuda::real_dlsym()(library, any->name);
  cuda::real_dlclose()(library);
  return any->found != nullptr ? 1 : 0;
}

// A caller without a linked runtime (under-linked, generated at run time): the first one in the
// process.
void* find_anywhere(const char* name) {
  AnyRuntime any{name, nullptr};
  dl_iterate_phdr(look_into_runtime, &any);
  return any.found;
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
