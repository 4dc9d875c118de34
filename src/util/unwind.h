// SPDX-License-Identifier: Apache-2.0
// What a walk of the call stack must do in each of its frames: LLVM's unwinder, which the portable
// library has in it, takes the address of an interrupted instruction for a return address. Where
// the instruction before moved the stack pointer it then reads the caller's registers elsewhere.
#ifndef CUPOOL_UTIL_UNWIND_H_
#define CUPOOL_UTIL_UNWIND_H_

#include <unwind.h>

#include <cstdint>

// LLVM's unwinder alone has it. Hidden: the program's own is not asked.
extern "C" __attribute__((weak, visibility("hidden"))) int __unw_step(void* cursor);

namespace cupool::util {

// The address in the frame, and whether a signal interrupted the instruction there. To be called
// once for each frame, before the walk goes on.
inline std::uintptr_t address_in_frame(_Unwind_Context* context, bool* is_interrupted) noexcept {
  int before_instruction = 0;
  const std::uintptr_t address = _Unwind_GetIPInfo(context, &before_instruction);
  *is_interrupted = before_instruction != 0;
#if defined(__x86_64__)
  constexpr int kProgramCounter = 16;
#elif defined(__aarch64__)
  constexpr int kProgramCounter = 32;
#endif
  // By the register's number: by its name, the function would be looked up anew, one byte too far.
  if (*is_interrupted && __unw_step != nullptr) {
    _Unwind_SetGR(context, kProgramCounter, address + 1);
  }
  return address;
}

}  // namespace cupool::util

#endif  // CUPOOL_UTIL_UNWIND_H_
