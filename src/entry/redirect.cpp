// SPDX-License-Identifier: Apache-2.0
// The exported `dup2`, `dup3` and `freopen`: with them a program deliberately replaces standard
// error, or a descriptor named by an option, and the new file may be written to. Any other file
// with that number is the program's own.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "cuda/dynamic_linker.h"
#include "entry/hooks.h"
#include "util/standard_error.h"

namespace {

using Dup2 = int (*)(int, int);
using Dup3 = int (*)(int, int, int);
using Reopen = FILE* (*)(const char*, const char*, FILE*);

std::atomic<pid_t> own_process{0};

void note_child() {
  own_process.store(getpid(), std::memory_order_relaxed);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(cupool::cuda::real_dlsym()(RTLD_NEXT, name));
}

struct Real {
  Dup2 dup2;
  Dup3 dup3;
  Reopen freopen;
  Reopen freopen64;
};

// Resolved at load: a child after fork() may redirect while a lock of the dynamic linker is held
// for ever.
const Real& real() {
  static const Real found{next<Dup2>("dup2"), next<Dup3>("dup3"), next<Reopen>("freopen"),
                          next<Reopen>("freopen64")};
  return found;
}

__attribute__((constructor)) void note_start() {
  note_child();
  pthread_atfork(nullptr, nullptr, note_child);
  real();
  cupool::util::note_standard_error(true);
  // The settings are read at the first use of the GPU; by then the number may belong to another
  // file.
  for (const char* option : {"CUPOOL_STATS_FILE", "CUPOOL_TRACE", "CUPOOL_LOG_FILE"}) {
    const char* const value = secure_getenv(option);
    if (value != nullptr) cupool::util::note_descriptor(cupool::util::descriptor_named(value));
  }
}

// A child of vfork() shares its parent's memory: its redirections are not the parent's.
int redirected(int descriptor) {
  if (descriptor >= 0 && own_process.load(std::memory_order_relaxed) == getpid()) {
    cupool::util::note_redirection(descriptor);
  }
  return descriptor;
}

FILE* reopened(FILE* stream) {
  if (stream != nullptr) redirected(fileno(stream));
  return stream;
}

}  // namespace

extern "C" {

CUPOOL_EXPORT int cupool_hook_dup2(int from, int to) __asm__("dup2");
CUPOOL_EXPORT int cupool_hook_dup3(int from, int to, int flags) __asm__("dup3");
CUPOOL_EXPORT FILE* cupool_hook_freopen(const char* path, const char* mode,
                                        FILE* stream) __asm__("freopen");
CUPOOL_EXPORT FILE* cupool_hook_freopen64(const char* path, const char* mode,
                                          FILE* stream) __asm__("freopen64");

int cupool_hook_dup2(int from, int to) {
  return redirected(real().dup2(from, to));
}
int cupool_hook_dup3(int from, int to, int flags) {
  return redirected(real().dup3(from, to, flags));
}
FILE* cupool_hook_freopen(const char* path, const char* mode, FILE* stream) {
  return reopened(real().freopen(path, mode, stream));
}
FILE* cupool_hook_freopen64(const char* path, const char* mode, FILE* stream) {
  return reopened(real().freopen64(path, mode, stream));
}

}  // extern "C"
