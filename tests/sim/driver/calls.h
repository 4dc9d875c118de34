// SPDX-License-Identifier: Apache-2.0
// One number for each driver function, from the same list as the exports and the answers of
// cuGetProcAddress; calls are counted by it and faults are injected by it.
#pragma once

#include <cuda.h>

#include <string>

namespace cupool::sim {

enum class Call : unsigned {
#define SIM_FUNCTION(base, symbol, since, per_thread) symbol,
#include "driver/functions.def"
#undef SIM_FUNCTION
  count
};

const char* call_symbol(Call call);

/// Counts the call. Thread-safe, takes no lock.
void count_call(Call call);
unsigned long long calls_of(const char* symbol);
bool any_call();
void forget_calls();

/// Writes a line "symbol count" for every function that was called, with " after N" for the N-th
/// function to be called since the first injected fault.
void write_calls(const std::string& path);

/// The fault to report for this call; code is CUDA_SUCCESS for none. Rules: "name:n=code,..." where
/// name is the exported or the base name, n the number of the call, "n+" from then on, or "*"
/// always; "code!" is an error that is there to stay, "hang" a call that never returns. A rule
/// ">name:n=code" counts calls from when the rule before it has struck.
struct InjectedFault {
  CUresult code = CUDA_SUCCESS;
  bool stays = false;
  bool hangs = false;
};
InjectedFault injected_fault(Call call);
bool set_faults(const char* rules);

}  // namespace cupool::sim
