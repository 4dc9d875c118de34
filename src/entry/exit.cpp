// The exported `_exit` and `_Exit`: a program that leaves by them runs no exit handler, and still
// gets its report.
#include <sys/syscall.h>
#include <unistd.h>

#include <dlfcn.h>

#include "cuda/dynamic_linker.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"

namespace {

using ExitFunction = void (*)(int);
ExitFunction real_exit = nullptr;

// Found at load: a child after fork() may exit while a lock of the dynamic linker is held for ever.
__attribute__((constructor)) void find_real_exit() {
  real_exit = reinterpret_cast<ExitFunction>(cupool::cuda::real_dlsym()(RTLD_NEXT, "_exit"));
}

[[noreturn]] void leave(int status) {
  cupool::process::report_before_exit(status);
  if (real_exit != nullptr) real_exit(status);
  for (;;) syscall(SYS_exit_group, status);
}

}  // namespace

extern "C" {

[[noreturn]] CUPOOL_EXPORT void cupool_hook__exit(int status) __asm__("_exit");
[[noreturn]] CUPOOL_EXPORT void cupool_hook__Exit(int status) __asm__("_Exit");

void cupool_hook__exit(int status) {
  leave(status);
}
void cupool_hook__Exit(int status) {
  leave(status);
}

}  // extern "C"
