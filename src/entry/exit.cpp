// SPDX-License-Identifier: Apache-2.0
// The exported `_exit` and `_Exit`: they run no exit handlers, and the program still gets its
// report. And `exit` and `quick_exit`: in a signal handler that interrupted cupool, the program's
// own exit handlers must not wait for locks that are held for ever.
#include <sys/syscall.h>
#include <unistd.h>

#include <dlfcn.h>

#include <atomic>

#include "cuda/dynamic_linker.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"

namespace {

using ExitFunction = void (*)(int);

// Constant-initialised: the constructor of another library may exit before cupool's has run.
struct Next {
  const char* const name;
  std::atomic<ExitFunction> found{nullptr};

  ExitFunction find() {
    ExitFunction real = found.load(std::memory_order_acquire);
    if (real == nullptr) {
      real = reinterpret_cast<ExitFunction>(cupool::cuda::real_dlsym()(RTLD_NEXT, name));
      found.store(real, std::memory_order_release);
    }
    return real;
  }
};
Next next__exit{"_exit"};
Next next_exit{"exit"};
Next next_quick_exit{"quick_exit"};

// Resolved at load: a child after fork() may exit while a lock of the dynamic linker is held for
// ever.
__attribute__((constructor)) void find_real_exit() {
  for (Next* next : {&next__exit, &next_exit, &next_quick_exit}) next->find();
}

[[noreturn]] void leave_by(Next& next, int status) {
  const ExitFunction real = next.find();
  if (real != nullptr) real(status);
  for (;;) syscall(SYS_exit_group, status);
}

[[noreturn]] void leave(int status) {
  cupool::process::report_before_exit(status);
  leave_by(next__exit, status);
}

}  // namespace

extern "C" {

[[noreturn]] CUPOOL_EXPORT void cupool_hook__exit(int status) __asm__("_exit");
[[noreturn]] CUPOOL_EXPORT void cupool_hook__Exit(int status) __asm__("_Exit");
[[noreturn]] CUPOOL_EXPORT void cupool_hook_exit(int status) __asm__("exit");
[[noreturn]] CUPOOL_EXPORT void cupool_hook_quick_exit(int status) __asm__("quick_exit");

void cupool_hook__exit(int status) {
  leave(status);
}
void cupool_hook__Exit(int status) {
  leave(status);
}

void cupool_hook_exit(int status) {
  cupool::process::stop_if_interrupted();
  leave_by(next_exit, status);
}
void cupool_hook_quick_exit(int status) {
  cupool::process::stop_if_interrupted();
  leave_by(next_quick_exit, status);
}

}  // extern "C"
