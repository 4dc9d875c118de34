// SPDX-License-Identifier: Apache-2.0
// Exported: the functions that are not modelled. This file does not see cuda.h, so that one line
// can define them all whatever their arguments are.
namespace {

constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED

}  // namespace

#define SIM_FUNCTION(base, symbol, since, per_thread)              \
  extern "C" __attribute__((visibility("default"))) int symbol() { \
    return kNotSupported;                                          \
  }
#include "driver/unsupported.def"
#undef SIM_FUNCTION
