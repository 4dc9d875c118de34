// SPDX-License-Identifier: Apache-2.0
// Two small libraries are built from this file; each defines query_marker and asks for the next
// one. The answer depends on which object asks, which a wrapper of dlsym easily gets wrong.
#include <dlfcn.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int query_marker() {
  return QUERY_MARKER;
}

// The marker of the next object after this one, or -1.
EXPORT int QUERY_NEXT() {
  void* next = dlsym(RTLD_NEXT, "query_marker");
  return next == nullptr ? -1 : reinterpret_cast<int (*)()>(next)();
}

// As above for a function of libc, which every object can reach.
EXPORT bool QUERY_FINDS_LIBC() {
  return dlsym(RTLD_NEXT, "malloc") != nullptr;
}
