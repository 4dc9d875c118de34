// SPDX-License-Identifier: Apache-2.0
// What a program makes of descriptor 2 before it uses the GPU (contract 11). mode= as_is, close (2
// is closed), own (closed, and the program's next file is given its number), own_log (the same,
// opened as logs are), own_output (the same with descriptor 1), dup2_output (dup2 onto 1), dup2,
// dup3, freopen, daemon (a child redirects and works), vfork (a child redirects its own, and ends),
// chdir (work, another directory, more work), two (two processes that end at once). file= is the
// file, or the directory, that takes part.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "probe.h"

namespace {

void use_the_gpu() {
  void* p = nullptr;
  MUST(cudaMalloc(&p, 4096));
  MUST(cudaFree(p));
}

// As a program does that keeps no other descriptor of it.
void redirect(const char* path, int flags) {
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  MUST(file < 0);
  MUST((flags < 0 ? dup2(file, STDERR_FILENO) : dup3(file, STDERR_FILENO, flags)) < 0);
  if (file != STDERR_FILENO) close(file);
}

// Whatever was free.
void take_the_number(const char* path, int flags, int number = STDERR_FILENO) {
  close(number);
  MUST(open(path, flags | O_CREAT, 0600) != number);
}

void redirect_in_vfork(const char* path) {
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  const pid_t child = vfork();
  if (child == 0) {
    dup2(file, STDERR_FILENO);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  close(file);
}

// More than a buffer of a trace holds.
void work() {
  for (int i = 0; i < 3000; ++i) use_the_gpu();
}

void work_in_two_processes() {
  const pid_t first = fork();
  const pid_t second = first == 0 ? 0 : fork();
  if (first != 0 && second != 0) {
    waitpid(first, nullptr, 0);
    waitpid(second, nullptr, 0);
    return;
  }
  for (int i = 0; i < (first == 0 ? 10 : 1000); ++i) use_the_gpu();
  usleep(300'000);
  exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "as_is");
  const char* path = probe::argument(argc, argv, "file", "");
  if (mode == "close") close(STDERR_FILENO);
  if (mode == "own") take_the_number(path, O_RDWR);
  if (mode == "own_log") take_the_number(path, O_WRONLY | O_APPEND);
  if (mode == "own_output") take_the_number(path, O_RDWR, STDOUT_FILENO);
  if (mode == "dup2_output") {
    const int file = open(path, O_WRONLY | O_CREAT, 0600);
    MUST(dup2(file, STDOUT_FILENO) < 0);
    close(file);
  }
  if (mode == "dup2") redirect(path, -1);
  if (mode == "dup3") redirect(path, O_CLOEXEC);
  if (mode == "freopen") MUST(std::freopen(path, "w", stderr) == nullptr);
  if (mode == "two") {
    work_in_two_processes();
    return 0;
  }
  if (mode == "chdir") {
    work();
    MUST(chdir(path));
    work();
  }
  if (mode == "vfork") redirect_in_vfork(path);
  if (mode == "daemon") {
    const pid_t child = fork();
    if (child != 0) {
      waitpid(child, nullptr, 0);
      return 0;
    }
    redirect(path, -1);
  }
  use_the_gpu();
  return 0;
}
