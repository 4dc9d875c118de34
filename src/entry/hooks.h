// SPDX-License-Identifier: Apache-2.0
// Declarations of the exported driver hooks. Their C++ names differ from the exported symbols, so
// that cuda.h (whatever its version) cannot disagree with the declarations.
#pragma once

#include <type_traits>

#include "cuda/driver.h"

#define CUPOOL_EXPORT __attribute__((visibility("default"), used))

extern "C" {
#define HOOK(symbol, base, since, stream)                                     \
  CUPOOL_EXPORT std::remove_pointer_t<decltype(cupool::cuda::Driver::symbol)> \
      cupool_hook_##symbol __asm__(#symbol);
#define RUNTIME_HOOK(symbol)
#define LIBC_HOOK(symbol)
#include "entry/hooks.def"
#undef HOOK
#undef RUNTIME_HOOK
#undef LIBC_HOOK
}
