// SPDX-License-Identifier: Apache-2.0
// A library of MPI as far as cupool is concerned: the name, and functions by which another process
// reads device memory outside CUDA's order. This one reads the memory as it is when it is called.
// (The simulated device's memory is the host's.)
#include <dlfcn.h>

#include <cstdint>

namespace {

uint32_t seen = 0;

int look(const void* buffer, int words) {
  seen = *(static_cast<const volatile uint32_t*>(buffer) + words - 1);
  return 0;
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

// The real functions have more arguments; six of them in registers and one on the stack.
EXPORTED int MPI_Send(const void* buffer, int words, long, int, int, long, long on_the_stack) {
  return look(buffer, words) + (on_the_stack == 77 ? 0 : 1);
}
EXPORTED int PMPI_Send(const void* buffer, int words, long, int, int, long, long on_the_stack) {
  return look(buffer, words) + (on_the_stack == 77 ? 0 : 1);
}
EXPORTED int MPI_Barrier(long) {
  return 0;
}
EXPORTED int MPI_Wait(void*, void*) {
  return 0;
}
// MPI's own look-ups, which are no route of the program's.
EXPORTED void* look_up_within_mpi(void* handle, const char* name) {
  return dlsym(handle, name);
}
// No function that cupool knows: what a program has taken out of the library by other means.
EXPORTED int send_unseen(const void* buffer, int words) {
  return look(buffer, words);
}
EXPORTED uint32_t last_word_seen() {
  return seen;
}
}
