// SPDX-License-Identifier: Apache-2.0
// A library whose constructor runs before ours, and calls what we export: argument call= exit,
// quick_exit, _exit, or redirect (dup2, dup3, freopen, dlopen and dlclose, and goes on). What it
// has printed is in a buffer yet when it leaves.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

void say_goodbye() {
  fputs("exit handler\n", stdout);
  fflush(stdout);
}

void redirect() {
  const int copy = dup(STDOUT_FILENO);
  const bool same = dup2(copy, 100) == 100 && dup3(copy, 101, 0) == 101;
  void* const itself = dlopen(nullptr, RTLD_LAZY);
  const bool closed = dlclose(itself) == 0;
  FILE* const error = freopen("/dev/null", "w", stderr);
  printf("duplicated %d closed %d reopened %d\n", same, closed, error == stderr);
}

__attribute__((constructor)) void start(int argc, char** argv) {
  if (argc < 2) return;
  atexit(say_goodbye);
  at_quick_exit(say_goodbye);
  printf("text of the library\n");
  if (strcmp(argv[1], "call=exit") == 0) exit(3);
  if (strcmp(argv[1], "call=quick_exit") == 0) quick_exit(4);
  if (strcmp(argv[1], "call=_exit") == 0) _exit(5);
  if (strcmp(argv[1], "call=redirect") == 0) redirect();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int early_library() {
  return 6;
}
