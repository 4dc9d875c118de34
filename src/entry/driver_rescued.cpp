// SPDX-License-Identifier: Apache-2.0
// Driver hooks of everything else that may take device memory: physical memory, code, graphs,
// streams, launches (code is loaded late, local memory grows). Untouched; after out of memory they
// are retried once idle memory was given back (contract 4).
#include "engine/context/submission.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/dependent_launches.h"
#include "engine/reclaim/host_targets.h"
#include "engine/reclaim/legacy_stream.h"
#include "entry/caller.h"
#include "entry/default_stream.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/noted.h"
#include "process/lifecycle.h"

using cupool::engine::DependentLaunch;
using cupool::engine::InlineSubmission;
using cupool::engine::LaunchOrder;
using cupool::engine::Submission;
using cupool::entry::is_cuda_library;
using cupool::entry::launch_noted;
using cupool::entry::legacy;
using cupool::entry::per_thread;

namespace {

CUstream stream_of(const void* configuration) {
  return configuration == nullptr
             ? nullptr
             : static_cast<const cupool::cuda::LaunchConfiguration*>(configuration)->stream;
}

// The second attempt. The first one failed for lack of memory and had no effect.
template <typename Call>
__attribute__((noinline)) CUresult rescue(const Call& call) {
  cupool::engine::Allocator* allocator = cupool::process::started_engine();
  return allocator == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : allocator->out_of_memory().retry(call);
}

// Page-locked memory that lies idle goes back. Device memory does only where page tables may lack
// room.
template <typename Call>
__attribute__((noinline)) CUresult rescue_pinned(size_t bytes, const Call& call) {
  cupool::engine::Allocator* allocator = cupool::process::started_engine();
  if (allocator == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  cupool::engine::Patience patience;
  patience.wants(bytes);
  const CUresult result = allocator->host().retry(call, cupool::util::now_ns(), patience);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  patience.wants(cupool::engine::page_table_bytes(bytes));
  return allocator->out_of_memory().retry_anywhere(call, patience);
}

template <typename Call>
__attribute__((noinline)) CUresult rescue_stream(const Call& create) {
  cupool::engine::Allocator* allocator = cupool::process::started_engine();
  return allocator == nullptr ? CUDA_ERROR_OUT_OF_MEMORY
                              : allocator->out_of_memory().retry_stream(create);
}

template <typename Call>
CUresult launch(const cupool::cuda::Driver& real, const void* configuration, CUstream stream,
                CUfunction function, void** values, void** extra, const Call& call) {
  const bool behind_free =
      DependentLaunch::permits_overlap(configuration) && LaunchOrder::is_first(real, stream);
  const DependentLaunch dependent(real, configuration, stream, behind_free);
  const auto launch = [&] {
    return launch_noted(real, stream, function, values, extra,
                        [&] { return call(dependent.configuration()); });
  };
  CUresult result = launch();
  if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0)) result = rescue(launch);
  if (result != CUDA_SUCCESS) return result;
  dependent.submitted();
  if (behind_free && dependent.is_serialised()) LaunchOrder::submitted(real, stream);
  return result;
}

}  // namespace

#define CUPOOL_RESCUED(symbol, parameters, arguments) \
  CUPOOL_RESCUED_BY(rescue, (void)0, symbol, parameters, arguments)
#define CUPOOL_RESCUED_AFTER(note, symbol, parameters, arguments) \
  CUPOOL_RESCUED_BY(rescue, note, symbol, parameters, arguments)
#define CUPOOL_RESCUED_STREAM(symbol, parameters, arguments)                             \
  CUPOOL_RESCUED_BY(rescue_stream, cupool::engine::LegacyStream::creates(flags), symbol, \
                    parameters, arguments)
#define CUPOOL_RESCUED_BY(rescue, note, symbol, parameters, arguments)          \
  CUresult cupool_hook_##symbol parameters {                                    \
    CUPOOL_REAL_OR_RETURN(symbol);                                              \
    note;                                                                       \
    const CUresult result = real.symbol arguments;                              \
    if (__builtin_expect(result != CUDA_ERROR_OUT_OF_MEMORY, 1)) return result; \
    return rescue([&] { return real.symbol arguments; });                       \
  }
#define CUPOOL_PINNED(symbol)                                                      \
  CUresult cupool_hook_##symbol(void* host, size_t bytes, unsigned int flags) {    \
    CUPOOL_REAL_OR_RETURN(symbol);                                                 \
    cupool::engine::HostTargets::made();                                           \
    const auto call = [&] { return real.symbol(host, bytes, flags); };             \
    CUresult result = call();                                                      \
    if (result == CUDA_ERROR_OUT_OF_MEMORY) result = rescue_pinned(bytes, call);   \
    if (result == CUDA_SUCCESS && !is_cuda_library(__builtin_return_address(0))) { \
      cupool::engine::PinnedMemory::add_registered(host, bytes);                   \
    }                                                                              \
    return result;                                                                 \
  }
// A launch, which may touch page-locked memory, also if only the second attempt succeeds. No free
// waits for the time between attempts: what was refused has submitted nothing.
#define CUPOOL_LAUNCH(symbol, to, extra_arguments, parameters, arguments)                      \
  CUresult cupool_hook_##symbol parameters {                                                   \
    CUPOOL_REAL_OR_RETURN(symbol);                                                             \
    const CUstream named = to;                                                                 \
    const InlineSubmission submission(real, named, #symbol);                                   \
    const auto call = [&] { return real.symbol arguments; };                                   \
    const CUresult first = launch_noted(real, named, function, values, extra_arguments, call); \
    if (__builtin_expect(first != CUDA_ERROR_OUT_OF_MEMORY, 1)) return first;                  \
    return rescue(                                                                             \
        [&] { return launch_noted(real, named, function, values, extra_arguments, call); });   \
  }
// Work: the retry is one submission with the first attempt.
#define CUPOOL_RESCUED_WORK(symbol, to, parameters, arguments)                             \
  CUPOOL_RESCUED_AFTER(const Submission submission(real, to, #symbol), symbol, parameters, \
                       arguments)

extern "C" {

// clang-format off
CUPOOL_RESCUED(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags), (address, bytes, offset, handle, flags))
CUPOOL_PINNED(cuMemHostRegister)
CUPOOL_PINNED(cuMemHostRegister_v2)
CUPOOL_RESCUED(cuModuleLoad, (CUmodule* module, const char* file), (module, file))
CUPOOL_RESCUED(cuModuleLoadData, (CUmodule* module, const void* image), (module, image))
CUPOOL_RESCUED(cuModuleLoadDataEx, (CUmodule* module, const void* image, unsigned int count, void* options, void** values), (module, image, count, options, values))
CUPOOL_RESCUED(cuModuleLoadFatBinary, (CUmodule* module, const void* image), (module, image))
CUPOOL_RESCUED(cuLibraryLoadData, (void** library, const void* code, CUjit_option* jit_options, void** jit_values, unsigned int jit_count, void* options, void** values, unsigned int count), (library, code, jit_options, jit_values, jit_count, options, values, count))
CUPOOL_RESCUED(cuLibraryLoadFromFile, (void** library, const char* file, CUjit_option* jit_options, void** jit_values, unsigned int jit_count, void* options, void** values, unsigned int count), (library, file, jit_options, jit_values, jit_count, options, values, count))
CUPOOL_RESCUED(cuLibraryGetModule, (CUmodule* module, void* library), (module, library))
CUPOOL_RESCUED(cuLibraryGetGlobal, (CUdeviceptr* address, size_t* bytes, void* library, const char* name), (address, bytes, library, name))
CUPOOL_RESCUED(cuKernelGetFunction, (CUfunction* function, void* kernel), (function, kernel))
CUPOOL_RESCUED(cuModuleGetFunction, (CUfunction* function, CUmodule module, const char* name), (function, module, name))
CUPOOL_RESCUED(cuModuleGetGlobal_v2, (CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name), (address, bytes, module, name))
CUPOOL_RESCUED(cuFuncLoad, (CUfunction function), (function))
CUPOOL_RESCUED(cuGraphInstantiate, (CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node, char* log, size_t bytes), (executable, graph, error_node, log, bytes))
CUPOOL_RESCUED(cuGraphInstantiate_v2, (CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node, char* log, size_t bytes), (executable, graph, error_node, log, bytes))
CUPOOL_RESCUED(cuGraphInstantiateWithFlags, (CUgraphExec* executable, CUgraph graph, unsigned long long flags), (executable, graph, flags))
CUPOOL_RESCUED(cuGraphInstantiateWithParams, (CUgraphExec* executable, CUgraph graph, void* parameters), (executable, graph, parameters))
CUPOOL_RESCUED(cuGraphInstantiateWithParams_ptsz, (CUgraphExec* executable, CUgraph graph, void* parameters), (executable, graph, parameters))
CUPOOL_RESCUED_WORK(cuGraphUpload, legacy(stream), (CUgraphExec executable, CUstream stream), (executable, stream))
CUPOOL_RESCUED_WORK(cuGraphUpload_ptsz, per_thread(stream), (CUgraphExec executable, CUstream stream), (executable, stream))
CUPOOL_RESCUED_STREAM(cuStreamCreate, (CUstream* stream, unsigned int flags), (stream, flags))
CUPOOL_RESCUED_STREAM(cuStreamCreateWithPriority, (CUstream* stream, unsigned int flags, int priority), (stream, flags, priority))
CUPOOL_RESCUED(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value))
CUPOOL_LAUNCH(cuLaunchKernel, legacy(stream), extra, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void** values, void** extra), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, values, extra))
CUPOOL_LAUNCH(cuLaunchKernel_ptsz, per_thread(stream), extra, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void** values, void** extra), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, values, extra))
CUPOOL_LAUNCH(cuLaunchCooperativeKernel, legacy(stream), nullptr, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void** values), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, values))
CUPOOL_LAUNCH(cuLaunchCooperativeKernel_ptsz, per_thread(stream), nullptr, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void** values), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, values))
// clang-format on

CUresult cupool_hook_cuLaunchKernelEx(const void* configuration, CUfunction function,
                                      void** parameters, void** extra) {
  CUPOOL_REAL_OR_RETURN(cuLaunchKernelEx);
  const CUstream stream = legacy(stream_of(configuration));
  const InlineSubmission submission(real, stream, "cuLaunchKernelEx");
  return launch(real, configuration, stream, function, parameters, extra, [&](const void* given) {
    return real.cuLaunchKernelEx(given, function, parameters, extra);
  });
}

CUresult cupool_hook_cuLaunchKernelEx_ptsz(const void* configuration, CUfunction function,
                                           void** parameters, void** extra) {
  CUPOOL_REAL_OR_RETURN(cuLaunchKernelEx_ptsz);
  const CUstream stream = per_thread(stream_of(configuration));
  const InlineSubmission submission(real, stream, "cuLaunchKernelEx_ptsz");
  return launch(real, configuration, stream, function, parameters, extra, [&](const void* given) {
    return real.cuLaunchKernelEx_ptsz(given, function, parameters, extra);
  });
}

// Names its device, independent of the current context.
CUresult cupool_hook_cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
  CUPOOL_REAL_OR_RETURN(cuMemCreate);
  const bool of_host =
      properties != nullptr && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  if (of_host) {
    cupool::engine::HostTargets::made();
    if (!is_cuda_library(__builtin_return_address(0))) {
      cupool::engine::HostTargets::host_is_elsewhere();
    }
  }
  const auto create = [&] { return real.cuMemCreate(handle, bytes, properties, flags); };
  const CUresult result = create();
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  if (of_host) return rescue_pinned(bytes, create);
  cupool::engine::Allocator* const allocator = cupool::process::started_engine();
  if (allocator == nullptr) return result;
  cupool::engine::Patience patience;
  patience.wants(bytes);
  return allocator->out_of_memory().retry_on(properties->location.id, create, patience);
}

}  // extern "C"
