// SPDX-License-Identifier: Apache-2.0
// A library of the program that calls MPI. PLUGIN_DEFINES: it has functions of those names itself,
// as programs do that were built without MPI, and is no MPI. PLUGIN_LOOKS_UP: it has looked up the
// function that comes next. PLUGIN_TOOL: a tool around MPI, which defines the function and calls
// the one that comes next.
#include <dlfcn.h>

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

#ifdef PLUGIN_DEFINES
EXPORTED int MPI_Send(const void*, int, long, int, int, long, long) {
  return 42;
}
#elif defined(PLUGIN_TOOL)
EXPORTED int calls_of_tool = 0;
EXPORTED int MPI_Send(const void* buffer, int words, long type, int to, int tag, long where,
                      long on_the_stack) {
  ++calls_of_tool;
  using Send = int (*)(const void*, int, long, int, int, long, long);
  auto* const next = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "MPI_Send"));
  return next == nullptr ? -1 : next(buffer, words, type, to, tag, where, on_the_stack);
}
#elif !defined(PLUGIN_LOOKS_UP)
int MPI_Send(const void*, int, long, int, int, long, long);
#endif

EXPORTED int plugin_send(const void* buffer, int words) {
#ifdef PLUGIN_LOOKS_UP
  using Send = int (*)(const void*, int, long, int, int, long, long);
  auto* const next = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "MPI_Send"));
  return next == nullptr ? -1 : next(buffer, words, 3, 4, 5, 6, 77);
#else
  // Volatile: called by the name, whatever this library defines.
  int (*volatile send)(const void*, int, long, int, int, long, long) = &MPI_Send;
  return send(buffer, words, 3, 4, 5, 6, 77);
#endif
}
}
