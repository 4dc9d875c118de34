// SPDX-License-Identifier: Apache-2.0
// Exported: cuGetProcAddress, answered from the one list of functions: by base name, by the
// version that the caller was compiled for, and by stream flag.
#include <cudaProfiler.h>

#include <cstring>

#include "driver/entry.h"
#include "driver/newer.h"

namespace cupool::sim {

// The functions at addresses that have no exported name.
#if defined(__x86_64__)
#define SIM_JUMP(symbol) "jmp " #symbol "@PLT"
#else
#define SIM_JUMP(symbol) "b " #symbol
#endif
#define SIM_FUNCTION(base, symbol, since, per_thread)                              \
  extern "C" __attribute__((visibility("hidden"))) void sim_unexported_##symbol(); \
  __asm__(".pushsection .text\nsim_unexported_" #symbol ":\n" SIM_JUMP(            \
      symbol) "\n"                                                                 \
              ".popsection");
#include "driver/functions.def"
#include "driver/unsupported.def"
#undef SIM_FUNCTION

namespace {

struct Symbol {
  const char* base;
  int since;
  bool per_thread;
  void* function;
  void* unexported;
};

const Symbol* symbols(size_t* count) {
  static const Symbol list[] = {
#define SIM_FUNCTION(base, symbol, since, per_thread)               \
  {#base, since, per_thread != 0, reinterpret_cast<void*>(&symbol), \
   reinterpret_cast<void*>(&sim_unexported_##symbol)},
#include "driver/functions.def"
#include "driver/unsupported.def"
#undef SIM_FUNCTION
  };
  *count = sizeof list / sizeof list[0];
  return list;
}

// As measured with driver 580: a version beyond the driver's and unknown flags are refused and
// nothing is written; where a function has a twin for the per-thread default stream, that flag
// accepts only the twin.
CUresult find(const char* name, int version, cuuint64_t flags, void** function,
              CUdriverProcAddressQueryResult* status) {
  const int driver = world().settings.driver_version;
  if (name == nullptr || version > driver || flags > 3) return CUDA_ERROR_INVALID_VALUE;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  size_t count = 0;
  const Symbol* const list = symbols(&count);
  bool known = false;
  bool has_twin = false;
  for (size_t i = 0; i < count; ++i) {
    if (std::strcmp(list[i].base, name) != 0 || list[i].since > driver) continue;
    known = true;
    has_twin = has_twin || list[i].per_thread;
  }
  const Symbol* best = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const Symbol& s = list[i];
    if (std::strcmp(s.base, name) != 0 || s.since > driver || s.since > version) continue;
    if (s.per_thread != (per_thread && has_twin)) continue;
    if (best == nullptr || s.since > best->since) best = &s;
  }
  const bool unexported = world().settings.unexported;
  *function = best == nullptr ? nullptr : unexported ? best->unexported : best->function;
  *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
            : known         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

// The first version has an error for "not found" and then leaves the caller's pointer alone.
CUresult find_v1(const char* name, void** out, int version, cuuint64_t flags) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = find(name, version, flags, &function, &status);
  if (result != CUDA_SUCCESS) return result;
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = function;
  return CUDA_SUCCESS;
}

// The second one succeeds with a null pointer, and tells why if it is asked.
CUresult find_v2(const char* name, void** out, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status_out) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = find(name, version, flags, &function, &status);
  if (result != CUDA_SUCCESS) return result;
  *out = function;
  if (status_out != nullptr) *status_out = status;
  return CUDA_SUCCESS;
}

}  // namespace

SIM_DEFINE_ANY_TIME(cuGetProcAddress,
                    (const char* name, void** function, int version, cuuint64_t flags),
                    find_v1(name, function, version, flags))
SIM_DEFINE_ANY_TIME(cuGetProcAddress_v2,
                    (const char* name, void** function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult* status),
                    find_v2(name, function, version, flags, status))

}  // namespace cupool::sim
