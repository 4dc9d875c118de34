// SPDX-License-Identifier: Apache-2.0
// Routes 2 and 3: `dlsym` and `cuGetProcAddress`. Both call the real resolver first; neither
// returns a function that the real one refused.
#include "entry/symbol_query.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstring>

#include "cuda/driver.h"
#include "cuda/dynamic_linker.h"
#include "engine/reclaim/lane.h"
#include "entry/caller.h"
#include "entry/hooks.h"
#include "entry/memory_hooks.h"
#include "entry/mpi_calls.h"
#include "entry/newer.h"
#include "entry/substitution.h"
#include "process/lifecycle.h"

namespace cupool::entry {

void* handle_of(const void* address) {
  Dl_info info = {};
  void* map = nullptr;
  if (dladdr1(address, &info, &map, RTLD_DL_LINKMAP) == 0 || map == nullptr) return nullptr;
  const char* path = static_cast<link_map*>(map)->l_name;
  if (path == nullptr || *path == '\0') return nullptr;
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) cuda::real_dlclose()(library);
  return library;
}

void* look_up_behind_us(const void* caller, const char* name) {
  void* found = cuda::real_dlsym()(RTLD_NEXT, name);
  if (found != nullptr) return found;
  void* library = handle_of(caller);
  if (library != nullptr) found = cuda::real_dlsym()(library, name);
  if (found != nullptr) dlerror();  // the program must not see the first look-up's error
  return found;
}

bool is_defined_before_us(const char* name) {
  void* const found = cuda::real_dlsym()(cuda::program_handle(), name);
  if (found == nullptr) dlerror();
  return found != nullptr && !is_own_code(found);
}

namespace {

// What a look-up of a driver function finds.
void* answer_for(const char* name, void* real, const void* caller) {
  return has_to_find_the_drivers(name, real, caller) ? real : substitute_symbol(name, real);
}

}  // namespace
}  // namespace cupool::entry

extern "C" {

/// The filter's answer: the result of dlsym, or, with `handled` 0, the handle for a jump to the
/// real dlsym.
struct CupoolDlsymAnswer {
  void* function_or_handle;
  std::uint64_t handled;
};

/// Called by the assembly entry of `dlsym` for names that begin with "cu", "opt", "NvE", "MPI" or
/// "PMPI". `caller` is the program's return address.
__attribute__((visibility("hidden"))) CupoolDlsymAnswer cupool_dlsym_filter(void* handle,
                                                                            const char* name,
                                                                            const void* caller);

/// Finds the next `dlsym` for the assembly entry.
__attribute__((visibility("hidden"))) void* cupool_resolve_dlsym() {
  return reinterpret_cast<void*>(cupool::cuda::next_dlsym());
}

namespace {

// Makes the program's look-up fail with a message of dlerror() that does not name cupool: the real
// dlsym fails in the caller's own object, as the message would say without cupool, or for the
// program itself in libc.
CupoolDlsymAnswer refusal(const void* caller) {
  void* without_us = cupool::entry::handle_of(caller);
  if (without_us == nullptr) {
    without_us = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (without_us == nullptr) return {nullptr, 1};
    cupool::cuda::real_dlclose()(without_us);
  }
  return {without_us, 0};
}

// The doors of OptiX, the video decoder and the encoder, which submit work by routes of their own.
bool leads_to_unseen_work(const char* name) {
  return std::strncmp(name, "cuvid", 5) == 0 || std::strcmp(name, "optixQueryFunctionTable") == 0 ||
         std::strcmp(name, "NvEncodeAPICreateInstance") == 0;
}

// A name without a hook, which may be a function that needs a guard.
CupoolDlsymAnswer guarded(void* handle, const char* name, const void* caller) {
  using namespace cupool::entry;
  const cupool::cuda::Driver* driver = nullptr;
  if (handle == RTLD_NEXT || !is_newer(name) || !cupool::process::enabled() ||
      (driver = cupool::cuda::driver()) == nullptr) {
    return {handle, 0};
  }
  void* const found = handle == RTLD_DEFAULT ? look_up_behind_us(caller, name)
                                             : cupool::cuda::real_dlsym()(handle, name);
  Dl_info known = {};
  Dl_info info = {};
  const bool drivers = found != nullptr && dladdr(found, &info) != 0 &&
                       dladdr(reinterpret_cast<void*>(driver->cuDriverGetVersion), &known) != 0 &&
                       info.dli_fbase == known.dli_fbase;
  if (!drivers) return {handle, 0};
  return {guard_newer(name, found), 1};
}

}  // namespace

CupoolDlsymAnswer cupool_dlsym_filter(void* handle, const char* name, const void* caller) {
  using namespace cupool::entry;
  if (cupool::cuda::is_round_trip(name)) return {nullptr, 1};
  if (const auto found = look_up_mpi(handle, name, caller)) {
    return *found == nullptr ? refusal(caller) : CupoolDlsymAnswer{*found, 1};
  }
  if (leads_to_unseen_work(name)) {
    // Its work is not seen, so it would not wait for the lane's mark.
    const cupool::cuda::Driver* const driver = cupool::cuda::driver();
    constexpr const char* kWhat = "a library of OptiX or of the video engines";  // kept
    if (driver != nullptr) {
      cupool::engine::Lane::leave_unknown(*driver, kWhat);
    } else {
      cupool::engine::Lane::leave(cupool::engine::Lane::End::unknown_work, kWhat);
    }
    return {handle, 0};
  }
  const bool driver_name = is_driver_hook(name);
  if (!driver_name && !is_runtime_hook(name)) return guarded(handle, name, caller);

  if (handle == RTLD_DEFAULT && is_defined_before_us(name)) return {handle, 0};
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) {
    // cupool's export would be found even without a driver or runtime: it may be visible only if a
    // real definition follows it.
    void* real = look_up_behind_us(caller, name);
    if (real == nullptr) return refusal(caller);
    if (handle == RTLD_NEXT) return {handle, 0};  // from the caller's place in the search order
    return {driver_name ? answer_for(name, real, caller) : real, 1};
  }

  void* found = cupool::cuda::real_dlsym()(handle, name);
  // A handle of the whole program (dlopen(NULL)) finds cupool's export first, too.
  if (found != nullptr && is_own_code(found)) {
    found = look_up_behind_us(caller, name);
    if (found == nullptr) return refusal(caller);
  }
  if (found == nullptr || !driver_name) return {found, 1};
  return {answer_for(name, found, caller), 1};
}

CUresult cupool_hook_cuGetProcAddress(const char* symbol, void** function, int version,
                                      cuuint64_t flags) {
  const cupool::cuda::Driver* driver = cupool::cuda::driver();
  if (driver == nullptr || driver->cuGetProcAddress == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult result = driver->cuGetProcAddress(symbol, function, version, flags);
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr && *function != nullptr) {
    *function = cupool::entry::substitute_query(symbol, version, flags, *function);
  }
  return result;
}

CUresult cupool_hook_cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                         cuuint64_t flags, void* status) {
  const cupool::cuda::Driver* driver = cupool::cuda::driver();
  if (driver == nullptr || driver->cuGetProcAddress_v2 == nullptr) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  const CUresult result = driver->cuGetProcAddress_v2(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr && *function != nullptr) {
    *function = cupool::entry::substitute_query(symbol, version, flags, *function);
  }
  return result;
}

}  // extern "C"
