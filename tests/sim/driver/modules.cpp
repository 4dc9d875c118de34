// SPDX-License-Identifier: Apache-2.0
// The kernels of the tests, executed by the host on the same addresses.
#include "driver/modules.h"

#include <cstring>

#include "driver/context.h"
#include "driver/device.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

using Arguments = std::vector<uint64_t>;

uint64_t fill_time(size_t bytes) {
  return 2000 +
         static_cast<uint64_t>(static_cast<double>(bytes) / world().settings.gigabytes_per_second);
}

/// Runs `body` if the context may touch all of the accesses.
template <typename Body>
OpSpec kernel(const char* name, Context& context, std::vector<Access> accesses, Body body) {
  OpSpec spec;
  spec.name = name;
  spec.accesses = std::move(accesses);
  for (const Access& access : spec.accesses) spec.duration_ns += fill_time(access.bytes);
  spec.effect = [&context, touched = spec.accesses, body]() -> CUresult {
    for (const Access& access : touched) {
      const CUresult result = may_access(context, access.base, access.bytes);
      if (result != CUDA_SUCCESS) return result;
    }
    body();
    return CUDA_SUCCESS;
  };
  return spec;
}

// stamp_u32(u32* p, u64 n, u32 value)
OpSpec stamp(Context& context, const Arguments& a) {
  return kernel("stamp_u32", context, {{a[0], a[1] * 4, true}}, [a] {
    auto* const p = reinterpret_cast<uint32_t*>(a[0]);
    for (uint64_t i = 0; i < a[1]; ++i) p[i] = static_cast<uint32_t>(a[2]);
  });
}

// check_u32(const u32* p, u64 n, u32 value, u64* mismatches)
OpSpec check(Context& context, const Arguments& a) {
  return kernel("check_u32", context, {{a[0], a[1] * 4, false}, {a[3], 8, true}}, [a] {
    const auto* const p = reinterpret_cast<const uint32_t*>(a[0]);
    uint64_t mismatches = 0;
    for (uint64_t i = 0; i < a[1]; ++i) mismatches += p[i] != static_cast<uint32_t>(a[2]);
    *reinterpret_cast<uint64_t*>(a[3]) += mismatches;
  });
}

// copy_u32(u32* dst, const u32* src, u64 n)
OpSpec copy(Context& context, const Arguments& a) {
  return kernel("copy_u32", context, {{a[0], a[2] * 4, true}, {a[1], a[2] * 4, false}}, [a] {
    std::memmove(reinterpret_cast<void*>(a[0]), reinterpret_cast<const void*>(a[1]), a[2] * 4);
  });
}

// late_stamp_u32(u32* p, u64 n, u32 value, u64 ns)
OpSpec late_stamp(Context& context, const Arguments& a) {
  OpSpec spec = stamp(context, a);
  spec.name = "late_stamp_u32";
  spec.duration_ns = a[3];
  return spec;
}

// spin_ns(u64 ns)
OpSpec spin(Context& context, const Arguments& a) {
  OpSpec spec = kernel("spin_ns", context, {}, [] {});
  spec.duration_ns = a[0];
  return spec;
}

// trap(): a sticky error, as from an assertion in device code
OpSpec trap(Context&, const Arguments&) {
  OpSpec spec;
  spec.name = "trap";
  spec.effect = [] { return CUDA_ERROR_LAUNCH_FAILED; };
  return spec;
}

const Kernel kKernels[] = {
    {"stamp_u32", {8, 8, 4}, stamp}, {"check_u32", {8, 8, 4, 8}, check},
    {"copy_u32", {8, 8, 8}, copy},   {"late_stamp_u32", {8, 8, 4, 8}, late_stamp},
    {"spin_ns", {8}, spin},          {"trap", {}, trap},
};

}  // namespace

const Kernel* find_kernel(const std::string& name) {
  for (const Kernel& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

Module* Modules::load(Context* context) {
  auto module = std::make_unique<Module>();
  module->context = context;
  if (context != nullptr) {
    module->memory = context->device->take(kChunkBytes);
    if (module->memory == 0) return nullptr;
  }
  modules_.insert(module.get());
  return module.release();
}

bool Modules::unload(Module* module) {
  if (modules_.erase(module) == 0) return false;
  for (auto& function : module->functions) functions_.erase(function.get());
  if (module->memory != 0) module->context->device->give(module->memory, kChunkBytes);
  delete module;
  return true;
}

void Modules::unload_all(Context& context) {
  std::vector<Module*> gone;
  for (Module* module : modules_) {
    if (module->context == &context) gone.push_back(module);
  }
  for (Module* module : gone) unload(module);
}

Function* Modules::function(Module& module, const char* name) {
  const Kernel* const kernel = find_kernel(name);
  if (kernel == nullptr) return nullptr;
  for (auto& function : module.functions) {
    if (function->kernel == kernel) return function.get();
  }
  module.functions.push_back(std::make_unique<Function>());
  Function* const function = module.functions.back().get();
  function->kernel = kernel;
  function->module = &module;
  functions_.insert(function);
  return function;
}

}  // namespace cupool::sim
