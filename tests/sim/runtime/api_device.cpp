// SPDX-License-Identifier: Apache-2.0
// Exported: devices, errors, versions, entry points.
#include <cuda_profiler_api.h>

#include <cstring>

#include "runtime/runtime.h"

namespace cupool::sim::runtime {

namespace {

cudaError_t count(int* out) {
  if (out == nullptr) return cudaErrorInvalidValue;
  *out = 0;
  const cudaError_t state = loaded();
  return state != cudaSuccess ? state : translate(driver().cuDeviceGetCount(out));
}

cudaError_t get_device(int* out) {
  if (out == nullptr) return cudaErrorInvalidValue;
  const cudaError_t state = loaded();
  if (state == cudaSuccess) *out = thread_device();
  return state;
}

cudaError_t attribute(int* value, cudaDeviceAttr attr, int device) {
  const cudaError_t state = loaded();
  if (state != cudaSuccess) return state;
  return translate(
      driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attr), device));
}

cudaError_t properties(cudaDeviceProp* p, int device) {
  const cudaError_t state = loaded();
  if (state != cudaSuccess) return state;
  if (p == nullptr) return cudaErrorInvalidValue;
  std::memset(p, 0, sizeof *p);
  const Driver& d = driver();
  const CUresult result = d.cuDeviceGetName(p->name, sizeof p->name, device);
  if (result != CUDA_SUCCESS) return translate(result);
  d.cuDeviceTotalMem_v2(&p->totalGlobalMem, device);
  auto get = [&](CUdevice_attribute a) {
    int value = 0;
    d.cuDeviceGetAttribute(&value, a, device);
    return value;
  };
  p->major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  p->minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  p->multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  p->warpSize = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  p->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  p->maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  p->maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  p->maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  p->maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  p->maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  p->maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  p->asyncEngineCount = get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  p->textureAlignment = 512;
  p->memPitch = 2147483647;
  p->unifiedAddressing = 1;
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->concurrentKernels = 1;
  p->canMapHostMemory = 1;
  p->memoryPoolsSupported = get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  p->memoryPoolSupportedHandleTypes =
      static_cast<unsigned>(get(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES));
  p->pciBusID = get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  return cudaSuccess;
}

cudaError_t reset() {
  const cudaError_t state = loaded();
  if (state != cudaSuccess) return state;
  const int device = thread_device();
  const CUresult result = driver().cuDevicePrimaryCtxReset(device);
  if (result == CUDA_SUCCESS) forget_device(device);
  return translate(result);
}

cudaError_t enable_peer(int peer, unsigned flags, bool enable) {
  cudaError_t state = ready();
  if (state != cudaSuccess) return state;
  const int home = thread_device();
  state = use_device(peer);  // the peer's primary context has to exist
  CUcontext context = nullptr;
  if (state == cudaSuccess) driver().cuCtxGetCurrent(&context);
  const cudaError_t back = use_device(home);
  if (state != cudaSuccess) return state;
  if (back != cudaSuccess) return back;
  return translate(enable ? driver().cuCtxEnablePeerAccess(context, flags)
                          : driver().cuCtxDisablePeerAccess(context));
}

cudaError_t can_access(int* can, int device, int peer) {
  const cudaError_t state = loaded();
  return state != cudaSuccess ? state
                              : translate(driver().cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t driver_version(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  const Driver& d = driver();
  *version = 0;
  return d.cuDriverGetVersion == nullptr ? cudaSuccess : translate(d.cuDriverGetVersion(version));
}

cudaError_t runtime_version(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t entry_point(const char* symbol, void** function, unsigned version,
                        unsigned long long flags, cudaDriverEntryPointQueryResult* out) {
  if (symbol == nullptr || function == nullptr) return cudaErrorInvalidValue;
  const cudaError_t state = loaded();
  if (state != cudaSuccess) return state;
  if (driver().get_proc_address == nullptr) return cudaErrorNotSupported;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result =
      driver().get_proc_address(symbol, function, static_cast<int>(version), flags, &status);
  if (result != CUDA_SUCCESS) return translate(result);
  if (out != nullptr)
    return *out = static_cast<cudaDriverEntryPointQueryResult>(status), cudaSuccess;
  return *function == nullptr ? cudaErrorSymbolNotFound : cudaSuccess;
}

cudaError_t limit(bool set, cudaLimit which, size_t* value) {
  const auto l = static_cast<CUlimit>(which);
  return set ? call(driver().cuCtxSetLimit, l, *value) : call(driver().cuCtxGetLimit, value, l);
}

const char* text_of(cudaError_t error, bool name) {
  const Driver& d = driver();
  const char* text = nullptr;
  const auto get = name ? d.cuGetErrorName : d.cuGetErrorString;
  if (get != nullptr) get(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}

}  // namespace

RT_DEFINE(cudaGetDeviceCount, (int* out), count(out))
RT_DEFINE(cudaGetDevice, (int* out), get_device(out))
RT_DEFINE(cudaSetDevice, (int device), use_device(device))
RT_DEFINE(cudaInitDevice, (int device, unsigned int, unsigned int), use_device(device))
RT_DEFINE(cudaGetDeviceProperties, (cudaDeviceProp * p, int device), properties(p, device))
RT_DEFINE(cudaDeviceGetAttribute, (int* value, cudaDeviceAttr attr, int device),
          attribute(value, attr, device))
RT_DEFINE(cudaDeviceReset, (), reset())
RT_DEFINE(cudaDeviceSynchronize, (), call(driver().cuCtxSynchronize))
RT_DEFINE(cudaDeviceCanAccessPeer, (int* can, int device, int peer), can_access(can, device, peer))
RT_DEFINE(cudaDeviceEnablePeerAccess, (int peer, unsigned int flags),
          enable_peer(peer, flags, true))
RT_DEFINE(cudaDeviceDisablePeerAccess, (int peer), enable_peer(peer, 0, false))
RT_DEFINE(cudaDeviceGetLimit, (size_t * value, cudaLimit which), limit(false, which, value))
RT_DEFINE(cudaDeviceSetLimit, (cudaLimit which, size_t value), limit(true, which, &value))
RT_DEFINE(cudaDeviceGetStreamPriorityRange, (int* least, int* greatest),
          call(driver().cuCtxGetStreamPriorityRange, least, greatest))
RT_DEFINE(cudaDeviceGetPCIBusId, (char* text, int length, int device),
          call(driver().cuDeviceGetPCIBusId, text, length, device))
RT_DEFINE(cudaDriverGetVersion, (int* version), driver_version(version))
RT_DEFINE(cudaRuntimeGetVersion, (int* version), runtime_version(version))
RT_DEFINE(cudaGetDriverEntryPointByVersion,
          (const char* symbol, void** function, unsigned int version, unsigned long long flags,
           cudaDriverEntryPointQueryResult* status),
          entry_point(symbol, function, version, flags, status))
RT_DEFINE(cudaGetDriverEntryPoint,
          (const char* symbol, void** function, unsigned long long flags,
           cudaDriverEntryPointQueryResult* status),
          entry_point(symbol, function, CUDART_VERSION, flags, status))

RT_DEFINE(cudaProfilerStart, (), call(driver().cuProfilerStart))
RT_DEFINE(cudaProfilerStop, (), call(driver().cuProfilerStop))

RT_EXPORT cudaGetLastError() {
  return last_error(true);
}
RT_EXPORT cudaPeekAtLastError() {
  return last_error(false);
}

extern "C" __attribute__((visibility("default"))) const char* CUDARTAPI
cudaGetErrorName(cudaError_t error) {
  return text_of(error, true);
}

extern "C" __attribute__((visibility("default"))) const char* CUDARTAPI
cudaGetErrorString(cudaError_t error) {
  return text_of(error, false);
}

}  // namespace cupool::sim::runtime
