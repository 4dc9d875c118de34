// Resolves runtime functions by call site and remembers them in a table that only grows.
#include "entry/real_runtime.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "cuda/dynamic_linker.h"

namespace cupool::entry {
namespace {

struct CallSite {
  const char* name;
  const void* caller;
  RealRuntimeFunction real;
};

constexpr std::size_t kSlots = 256;
std::atomic<const CallSite*> call_sites[kSlots];

std::size_t slot_of(const void* caller) {
  return static_cast<std::size_t>(
      (reinterpret_cast<std::uintptr_t>(caller) * std::uint64_t{0x9e3779b97f4a7c15}) >> 56);
}

bool is_own_code(const void* address) {
  Dl_info info = {};
  Dl_info own = {};
  return dladdr(address, &info) != 0 && dladdr(&call_sites, &own) != 0 &&
         info.dli_fbase == own.dli_fbase;
}

// Looks in the caller's own dependencies: exact, also where versions are mixed.
void* find_through_caller(const char* name, const void* caller) {
  Dl_info info = {};
  void* map = nullptr;
  if (dladdr1(caller, &info, &map, RTLD_DL_LINKMAP) == 0 || map == nullptr) return nullptr;
  const char* path = static_cast<link_map*>(map)->l_name;
  if (path == nullptr || *path == '\0') return nullptr;  // the program: its scope begins with us
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found = cuda::real_dlsym()(library, name);
  dlclose(library);
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
  dlclose(library);
  return any->found != nullptr ? 1 : 0;
}

// A caller that names no runtime (under-linked, made at run time): the first one in the process.
void* find_anywhere(const char* name) {
  AnyRuntime any{name, nullptr};
  dl_iterate_phdr(look_into_runtime, &any);
  return any.found;
}

// Also keeps the runtime in the process: another library may be mapped where the caller was, and
// its call site is taken for the old one.
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
  dlclose(library);
  return version;
}

RealRuntimeFunction resolve(const char* name, const void* caller) {
  RealRuntimeFunction real;
  real.function = find_through_caller(name, caller);
  if (real.function == nullptr) real.function = cuda::real_dlsym()(RTLD_NEXT, name);
  if (real.function == nullptr) real.function = find_anywhere(name);
  dlerror();  // a message of ours is not the program's
  if (real.function != nullptr) real.runtime_version = version_of_runtime(real.function);
  return real;
}

}  // namespace

RealRuntimeFunction real_runtime_function(const char* name, const void* caller) {
  std::size_t slot = slot_of(caller);
  for (std::size_t probe = 0; probe < kSlots; ++probe, slot = (slot + 1) % kSlots) {
    const CallSite* site = call_sites[slot].load(std::memory_order_acquire);
    if (site == nullptr) {
      const RealRuntimeFunction real = resolve(name, caller);
      if (real.function == nullptr) return real;
      auto* added = new CallSite{name, caller, real};
      const CallSite* expected = nullptr;
      if (!call_sites[slot].compare_exchange_strong(expected, added, std::memory_order_acq_rel)) {
        delete added;  // another thread took the slot; the next call finds its place
      }
      return real;
    }
    if (site->caller == caller && site->name == name) return site->real;
  }
  return resolve(name, caller);  // more call sites than slots: right, only slower
}

}  // namespace cupool::entry
