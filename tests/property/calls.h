// SPDX-License-Identifier: Apache-2.0
// The driver's functions for the programs. The simulated device is notified of each call, so that
// it can tell captures invalidated by the program from those invalidated by cupool's own calls
// (contract 9, I3). A function missing here works too, but its effect on captures then counts as
// cupool's.
#pragma once

#include <cuda.h>
#include <cupool_sim.h>

#include <atomic>
#include <cstring>

// Named as exported by the driver, not as versioned by cuda.h.
extern "C" {
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context);
}

namespace cupool::property {

/// The driver's codes 900 to 908: refused because of a capture.
inline bool is_capture_refusal(CUresult result) {
  const int code = static_cast<int>(result);
  return code >= 900 && code <= 908;
}

/// The latest call that invalidated a capture but reported success; null: none.
inline std::atomic<const char*> silent_harm{nullptr};

/// A function of the driver. Objects, not functions, so that argument-dependent look-up does not
/// find the driver's own.
template <typename... Parameters>
class Call {
 public:
  constexpr Call(const char* symbol, CUresult (*function)(Parameters...))
      : symbol_(symbol), function_(function) {}

  CUresult operator()(Parameters... parameters) const {
    cupoolSimProgramCall(symbol_);
    const CUresult result = function_(parameters...);
    const bool harm = cupoolSimProgramCall(nullptr) != 0;
    if (harm && !is_capture_refusal(result) && !ends_captures()) silent_harm = symbol_;
    return result;
  }

 private:
  bool ends_captures() const {
    for (const char* name : {"cuStreamDestroy", "cuCtxDestroy", "cuDevicePrimaryCtxReset",
                             "cuDevicePrimaryCtxRelease"}) {
      if (std::strncmp(symbol_, name, std::strlen(name)) == 0) return true;
    }
    return false;
  }

  const char* symbol_;
  CUresult (*function_)(Parameters...);
};

#define PROGRAM_CALL(function) PROGRAM_CALL_OF(function)
#define PROGRAM_CALL_OF(symbol) inline constexpr Call symbol(#symbol, &::symbol)

PROGRAM_CALL(cuCtxCreate_v2);
PROGRAM_CALL(cuCtxDestroy);
PROGRAM_CALL(cuCtxEnablePeerAccess);
PROGRAM_CALL(cuCtxPopCurrent);
PROGRAM_CALL(cuCtxSetCurrent);
PROGRAM_CALL(cuCtxSynchronize);
PROGRAM_CALL(cuCtxSynchronize_v2);
PROGRAM_CALL(cuDeviceGetCount);
PROGRAM_CALL(cuDeviceGetDefaultMemPool);
PROGRAM_CALL(cuDevicePrimaryCtxRelease);
PROGRAM_CALL(cuDevicePrimaryCtxReset);
PROGRAM_CALL(cuDevicePrimaryCtxRetain);
PROGRAM_CALL(cuDeviceTotalMem);
PROGRAM_CALL(cuEventCreate);
PROGRAM_CALL(cuEventDestroy);
PROGRAM_CALL(cuEventQuery);
PROGRAM_CALL(cuEventRecord);
PROGRAM_CALL(cuEventSynchronize);
PROGRAM_CALL(cuGraphCreate);
PROGRAM_CALL(cuGraphDestroy);
PROGRAM_CALL(cuGraphExecDestroy);
PROGRAM_CALL(cuGraphGetNodes);
PROGRAM_CALL(cuGraphInstantiate);
PROGRAM_CALL(cuGraphLaunch);
PROGRAM_CALL(cuGreenCtxCreate);
PROGRAM_CALL(cuGreenCtxDestroy);
PROGRAM_CALL(cuGreenCtxStreamCreate);
PROGRAM_CALL(cuInit);
PROGRAM_CALL(cuIpcCloseMemHandle);
PROGRAM_CALL(cuIpcGetMemHandle);
PROGRAM_CALL(cuIpcOpenMemHandle);
PROGRAM_CALL(cuLaunchHostFunc);
PROGRAM_CALL(cuLaunchKernel);
PROGRAM_CALL(cuMemAlloc);
PROGRAM_CALL(cuMemAllocAsync);
PROGRAM_CALL(cuMemAllocManaged);
PROGRAM_CALL(cuMemFree);
PROGRAM_CALL(cuMemFreeAsync);
PROGRAM_CALL(cuMemFreeHost);
PROGRAM_CALL(cuMemGetInfo);
PROGRAM_CALL(cuMemHostAlloc);
PROGRAM_CALL(cuMemHostGetDevicePointer);
PROGRAM_CALL(cuMemHostRegister);
PROGRAM_CALL(cuMemHostUnregister);
PROGRAM_CALL(cuMemPoolGetAttribute);
PROGRAM_CALL(cuMemPoolSetAttribute);
PROGRAM_CALL(cuMemPoolTrimTo);
PROGRAM_CALL(cuMemcpyBatchAsync);
PROGRAM_CALL(cuMemcpyDtoDAsync);
PROGRAM_CALL(cuMemcpyDtoHAsync);
PROGRAM_CALL(cuMemcpyHtoDAsync);
PROGRAM_CALL(cuMemcpyPeerAsync);
PROGRAM_CALL(cuMemsetD8Async);
PROGRAM_CALL(cuModuleGetFunction);
PROGRAM_CALL(cuModuleLoadData);
PROGRAM_CALL(cuPointerSetAttribute);
PROGRAM_CALL(cuStreamBeginCapture);
PROGRAM_CALL(cuStreamBeginCaptureToGraph);
PROGRAM_CALL(cuStreamCreate);
PROGRAM_CALL(cuStreamDestroy);
PROGRAM_CALL(cuStreamEndCapture);
PROGRAM_CALL(cuStreamSynchronize);
PROGRAM_CALL(cuStreamWaitEvent);
PROGRAM_CALL(cuThreadExchangeStreamCaptureMode);

#undef PROGRAM_CALL_OF
#undef PROGRAM_CALL

}  // namespace cupool::property
