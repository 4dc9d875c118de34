// SPDX-License-Identifier: Apache-2.0
// The unwinder marks the frame of a signal; the frames beyond it are the interrupted ones.
#include "process/interruption.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unwind.h>

#include <cstddef>
#include <cstdint>

#include "cuda/dynamic_linker.h"
#include "util/unwind.h"

namespace cupool::process {
namespace {

// A short list: the heap has more functions than can be listed, and inner ones reached by jumps.
// For the common ones it avoids a report that cannot finish.
bool begins_in_heap(std::uintptr_t function) {
  const auto is = [function](auto* entry) {
    return function == reinterpret_cast<std::uintptr_t>(entry);
  };
  return is(&malloc) || is(&free) || is(&calloc) || is(&realloc) || is(&aligned_alloc) ||
         is(&posix_memalign);
}

struct Walk {
  bool in_handler = false;
  bool in_heap = false;
};

_Unwind_Reason_Code look_at_frame(_Unwind_Context* context, void* state) {
  auto* const walk = static_cast<Walk*>(state);
  bool is_interrupted = false;
  if (util::address_in_frame(context, &is_interrupted) == 0) return _URC_NORMAL_STOP;
  if (is_interrupted) walk->in_handler = true;
  if (walk->in_handler && begins_in_heap(_Unwind_GetRegionStart(context))) walk->in_heap = true;
  return _URC_NO_REASON;
}

}  // namespace

Interrupted interrupted() noexcept {
  Walk walk;
  _Unwind_Backtrace(look_at_frame, &walk);
  if (!walk.in_handler) return Interrupted::nothing;
  return walk.in_heap ? Interrupted::heap : Interrupted::other;
}

bool has_little_stack() noexcept {
  // With pages of its own below it, a report at exit needs 16 KiB less the frame of the signal.
  constexpr std::ptrdiff_t kEnough = 24 << 10;
  stack_t stack{};
  if (sigaltstack(nullptr, &stack) != 0 || (stack.ss_flags & SS_ONSTACK) == 0) return false;
  const char* const here = static_cast<const char*>(__builtin_frame_address(0));
  return here - static_cast<const char*>(stack.ss_sp) < kEnough;
}

void prepare_unwinder() noexcept {
  interrupted();
  // The failed look-up must not be the program's error.
  if (cuda::real_dlsym()(RTLD_DEFAULT, "_dl_find_object") == nullptr) dlerror();
}

}  // namespace cupool::process
