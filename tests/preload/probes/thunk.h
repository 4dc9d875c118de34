// SPDX-License-Identifier: Apache-2.0
// Code made at run time, as of a compiler within the program: a call from it returns to an address
// that belongs to no object of the process.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "probe.h"

namespace probe {

/// A function that calls `function` with its own arguments, seven words at most, and returns its
/// result.
template <typename Function>
Function* thunk(Function* function) {
#if defined(__x86_64__)
  constexpr unsigned char kCode[] = {
      0x55,                                      // push rbp
      0x48, 0x89, 0xe5,                          // mov rbp, rsp
      0x48, 0x83, 0xec, 0x08,                    // sub rsp, 8
      0xff, 0x75, 0x10,                          // push [rbp + 16]: the seventh argument
      0x48, 0xb8, 0,    0,    0, 0, 0, 0, 0, 0,  // mov rax, function
      0xff, 0xd0,                                // call rax
      0xc9,                                      // leave
      0xc3,                                      // ret
  };
  constexpr std::size_t kTarget = 13;
#else  // aarch64: seven arguments are in registers
  constexpr std::uint32_t kCode[] = {
      0xa9bf7bfd,  // stp x29, x30, [sp, #-16]!
      0x58000090,  // ldr x16, function
      0xd63f0200,  // blr x16
      0xa8c17bfd,  // ldp x29, x30, [sp], #16
      0xd65f03c0,  // ret
      0,          0,
  };
  constexpr std::size_t kTarget = 20;
#endif
  void* const page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  auto* const code = static_cast<unsigned char*>(page);
  const auto target = reinterpret_cast<std::uintptr_t>(function);
  std::memcpy(code, kCode, sizeof kCode);
  std::memcpy(code + kTarget, &target, sizeof target);
  CHECK(mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0);
  __builtin___clear_cache(reinterpret_cast<char*>(code), reinterpret_cast<char*>(code) + 4096);
  return reinterpret_cast<Function*>(page);
}

}  // namespace probe
