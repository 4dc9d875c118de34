// SPDX-License-Identifier: Apache-2.0
// How the runtime reaches the driver, as the genuine one does (measured): one dlsym for
// cuGetProcAddress_v2, which is asked for all the rest; an old driver without it is searched name
// by name.
#include "runtime/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>

namespace cupool::sim::runtime {

namespace {

using GetProcAddress = decltype(&::cuGetProcAddress_v2);

void* ask(GetProcAddress get, const char* base, int version, bool per_thread) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  const cuuint64_t flags =
      per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT;
  const CUresult result = get(base, &function, version, flags, &status);
  return result == CUDA_SUCCESS ? function : nullptr;
}

// What the runtime calls without a look; of all else, call() says that it is not supported.
bool has_what_all_drivers_have(const Driver& d) {
  const bool found[] = {
      d.cuInit != nullptr,
      d.cuDriverGetVersion != nullptr,
      d.cuDeviceGetCount != nullptr,
      d.cuDeviceGetName != nullptr,
      d.cuDeviceGetAttribute != nullptr,
      d.cuDeviceTotalMem_v2 != nullptr,
      d.cuDeviceCanAccessPeer != nullptr,
      d.cuDevicePrimaryCtxRetain != nullptr,
      d.cuDevicePrimaryCtxRelease != nullptr,
      d.cuDevicePrimaryCtxReset != nullptr,
      d.cuCtxGetCurrent != nullptr,
      d.cuCtxSetCurrent != nullptr,
      d.cuCtxGetDevice != nullptr,
      d.cuCtxEnablePeerAccess != nullptr,
      d.cuCtxDisablePeerAccess != nullptr,
      d.cuMemAlloc_v2 != nullptr,
      d.cuMemAllocPitch_v2 != nullptr,
      d.cuMemAllocManaged != nullptr,
      d.cuMemHostAlloc != nullptr,
      d.cuMemFree_v2 != nullptr,
      d.cuMemFreeHost != nullptr,
      d.cuPointerGetAttributes != nullptr,
  };
  return std::all_of(std::begin(found), std::end(found), [](bool is) { return is; });
}

void load(Driver& d) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    d.state = cudaErrorInsufficientDriver;
    return;
  }
  d.get_proc_address = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (d.get_proc_address != nullptr) {
    // The genuine runtime begins like this: an empty name without a place for the status, then
    // the resolver itself in both its versions.
    void* ignored = nullptr;
    d.get_proc_address("", &ignored, CUDART_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    ask(d.get_proc_address, "cuGetProcAddress", 11030, false);
    void* const resolver = ask(d.get_proc_address, "cuGetProcAddress", 12000, false);
    if (resolver != nullptr) d.get_proc_address = reinterpret_cast<GetProcAddress>(resolver);
#define DRIVER_FUNCTION(symbol, base, since, per_thread) \
  d.symbol = reinterpret_cast<decltype(d.symbol)>(       \
      ask(d.get_proc_address, #base, since, per_thread != 0));
#include "runtime/driver_functions.def"
#undef DRIVER_FUNCTION
  } else {
#define DRIVER_FUNCTION(symbol, base, since, per_thread) \
  d.symbol = reinterpret_cast<decltype(d.symbol)>(dlsym(library, #symbol));
#include "runtime/driver_functions.def"
#undef DRIVER_FUNCTION
  }
  d.state = has_what_all_drivers_have(d) ? static_cast<cudaError_t>(d.cuInit(0))
                                         : cudaErrorInsufficientDriver;
}

}  // namespace

const Driver& driver() {
  static Driver* const instance = [] {
    auto* const d = new Driver;  // never destroyed: exit handlers still call CUDA
    load(*d);
    return d;
  }();
  return *instance;
}

}  // namespace cupool::sim::runtime
