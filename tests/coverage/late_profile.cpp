// SPDX-License-Identifier: Apache-2.0
// Writes the profile of a coverage build's library. The profile's runtime would do so in an exit
// handler: too early for the report, which is written when the library is unloaded, and `_exit`
// runs no handler. Once a process only: a second time would count all processes so far twice.
#include <cstdlib>

extern "C" {

// Defined here, this leaves out the part of the runtime that registers its exit handler.
__attribute__((visibility("hidden"))) int __llvm_profile_runtime;
void __llvm_profile_initialize_file(void);
int __llvm_profile_write_file(void);

// cupool::process::report_before_exit(int), which the exported `_exit` calls (the linker's --wrap).
void __real__ZN6cupool7process18report_before_exitEi(int status);
void __wrap__ZN6cupool7process18report_before_exitEi(int status);

void __wrap__ZN6cupool7process18report_before_exitEi(int status) {
  __real__ZN6cupool7process18report_before_exitEi(status);
  __llvm_profile_write_file();
}

}  // extern "C"

namespace {

void write_profile() {
  __llvm_profile_write_file();
}

__attribute__((constructor)) void prepare_profile() {
  __llvm_profile_initialize_file();
  std::at_quick_exit(write_profile);
}

// After the library's own destructors, which have no number.
__attribute__((destructor(101))) void write_at_unload() {
  write_profile();
}

}  // namespace
