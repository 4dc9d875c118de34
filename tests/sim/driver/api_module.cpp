// SPDX-License-Identifier: Apache-2.0
// Exported: modules, libraries and launches.
#include <cstring>

#include "driver/entry.h"

namespace cupool::sim {

namespace {

CUresult load(Entry& in, CUmodule* handle) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Module* const module = world().modules.load(context);
  if (module == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

// Waits for the work that may run its code (measured with an H200).
CUresult unload_module(Entry& in, CUmodule handle) {
  World& w = world();
  auto* const module = reinterpret_cast<Module*>(handle);
  if (!w.modules.known(module) || module->context == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Context& context = *module->context;
  const CUresult result = wait_for(in, context, tails(context));
  w.modules.unload(module);
  return result;
}

CUresult unload(CUmodule handle) {
  return world().modules.unload(reinterpret_cast<Module*>(handle)) ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_HANDLE;
}

CUresult get_function(Function** function, Module* module, const char* name) {
  World& w = world();
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!w.modules.known(module)) return CUDA_ERROR_INVALID_HANDLE;
  *function = w.modules.function(*module, name);
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult load_library(CUlibrary* library) {
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *library = reinterpret_cast<CUlibrary>(world().modules.load(nullptr));
  return CUDA_SUCCESS;
}

/// Reads the arguments as the caller passed them: an array of pointers, or one packed buffer.
CUresult read_arguments(const Kernel& kernel, void** params, void** extra,
                        std::vector<uint64_t>& arguments) {
  const unsigned char* packed = nullptr;
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      packed = static_cast<const unsigned char*>(extra[1]);
    }
  }
  size_t offset = 0;
  for (size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
    const size_t bytes = kernel.argument_bytes[i];
    uint64_t value = 0;
    if (packed != nullptr) {
      offset = (offset + bytes - 1) / bytes * bytes;
      std::memcpy(&value, packed + offset, bytes);
      offset += bytes;
    } else {
      if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(&value, params[i], bytes);
    }
    arguments.push_back(value);
  }
  return CUDA_SUCCESS;
}

CUresult launch_kernel(Entry& in, CUfunction handle, CUstream stream_handle, void** params,
                       void** extra, bool dependent = false) {
  Stream* stream = nullptr;
  CUresult result = in.stream(stream_handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  const auto* const function = reinterpret_cast<const Function*>(handle);
  if (!world().modules.known(function)) return CUDA_ERROR_INVALID_HANDLE;
  const Context* const home = function->module->context;
  if (home != nullptr && home != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<uint64_t> arguments;
  result = read_arguments(*function->kernel, params, extra, arguments);
  if (result != CUDA_SUCCESS) return result;
  in.costs(3100);
  OpSpec spec = function->kernel->make(*stream->context, arguments);
  return dependent ? perform_dependent(in, *stream, std::move(spec))
                   : perform(*stream, CU_GRAPH_NODE_TYPE_KERNEL, std::move(spec));
}

CUresult launch_configured(Entry& in, const CUlaunchConfig* config, CUfunction function,
                           void** params, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool dependent = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    dependent |= attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                 attribute.value.programmaticStreamSerializationAllowed != 0;
  }
  return launch_kernel(in, function, config->hStream, params, extra, dependent);
}

CUresult kernel_function(CUfunction* function, CUkernel kernel) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!world().modules.known(reinterpret_cast<Function*>(kernel))) return CUDA_ERROR_INVALID_HANDLE;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CUresult parameter(const void* handle, size_t index, size_t* offset, size_t* bytes) {
  const auto* const function = static_cast<const Function*>(handle);
  if (!world().modules.known(function)) return CUDA_ERROR_INVALID_HANDLE;
  const auto& all = function->kernel->argument_bytes;
  if (offset == nullptr || index >= all.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  for (size_t i = 0; i <= index; ++i) {
    *offset = (*offset + all[i] - 1) / all[i] * all[i];
    if (i < index) *offset += all[i];
  }
  if (bytes != nullptr) *bytes = all[index];
  return CUDA_SUCCESS;
}

Module* module_of(CUmodule handle) {
  return reinterpret_cast<Module*>(handle);
}
Module* module_of(CUlibrary handle) {
  return reinterpret_cast<Module*>(handle);
}

}  // namespace

SIM_DEFINE(cuModuleLoad, (CUmodule * module, const char*), load(in, module))
SIM_DEFINE(cuModuleLoadData, (CUmodule * module, const void*), load(in, module))
SIM_DEFINE(cuModuleLoadDataEx,
           (CUmodule * module, const void*, unsigned int, CUjit_option*, void**), load(in, module))
SIM_DEFINE(cuModuleLoadFatBinary, (CUmodule * module, const void*), load(in, module))
SIM_DEFINE(cuModuleUnload, (CUmodule module), unload_module(in, module))
SIM_DEFINE(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name),
           get_function(reinterpret_cast<Function**>(function), module_of(module), name))
SIM_DEFINE(cuLibraryLoadData,
           (CUlibrary * library, const void*, CUjit_option*, void**, unsigned int, CUlibraryOption*,
            void**, unsigned int),
           load_library(library))
SIM_DEFINE(cuLibraryUnload, (CUlibrary library), unload(reinterpret_cast<CUmodule>(library)))
SIM_DEFINE(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char* name),
           get_function(reinterpret_cast<Function**>(kernel), module_of(library), name))
SIM_DEFINE(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t* offset, size_t* bytes),
           parameter(function, index, offset, bytes))
SIM_DEFINE(cuKernelGetParamInfo, (CUkernel kernel, size_t index, size_t* offset, size_t* bytes),
           parameter(kernel, index, offset, bytes))
SIM_DEFINE(cuKernelGetFunction, (CUfunction * function, CUkernel kernel),
           kernel_function(function, kernel))
SIM_TWINS(cuLaunchKernel, cuLaunchKernel_ptsz,
          (CUfunction function, unsigned int, unsigned int, unsigned int, unsigned int,
           unsigned int, unsigned int, unsigned int, CUstream stream, void** params, void** extra),
          launch_kernel(in, function, stream, params, extra))
SIM_TWINS(cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
          (const CUlaunchConfig* config, CUfunction function, void** params, void** extra),
          launch_configured(in, config, function, params, extra))
SIM_TWINS(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz,
          (CUfunction function, unsigned int, unsigned int, unsigned int, unsigned int,
           unsigned int, unsigned int, unsigned int, CUstream stream, void** params),
          launch_kernel(in, function, stream, params, nullptr))

}  // namespace cupool::sim
