// SPDX-License-Identifier: Apache-2.0
// Processes made by a process that uses CUDA, or will (contract 11, I6). mode= after (fork, then
// the child calls CUDA), after_idle (the child only leaves), busy (fork while another thread
// allocates), before (fork first, the child uses CUDA), both, vfork, spawn, system.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <spawn.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "probe.h"
#include "probe_child.h"

extern char** environ;

using probe::say;
using probe::wait_for;

namespace {

void use_cuda(int times) {
  for (int i = 0; i < times; ++i) {
    void* p = nullptr;
    MUST(cudaMalloc(&p, 4096 << (i % 4)));
    MUST(cudaFree(p));
  }
}

// CUDA in a child of an initialised process does not work; what counts is an answer, not a hang.
[[noreturn]] void child_after_use(void* inherited) {
  void* p = nullptr;
  const int malloc_code = cudaMalloc(&p, 4096);
  const int free_code = cudaFree(inherited);
  const int sync_code = cudaDeviceSynchronize();
  std::printf("child malloc %d free %d synchronize %d\n", malloc_code, free_code, sync_code);
  std::fflush(stdout);
  std::exit(5);  // exit handlers run in the child: none of them may report
}

void fork_after(bool child_calls_cuda) {
  use_cuda(8);
  void* kept = nullptr;
  MUST(cudaMalloc(&kept, 4096));
  const pid_t child = fork();
  if (child == 0) {
    if (child_calls_cuda) child_after_use(kept);
    std::exit(5);
  }
  say("child ended", wait_for(child));
  MUST(cudaFree(kept));
  use_cuda(4);  // the parent is unharmed
}

void fork_while_busy() {
  std::atomic<bool> stop{false};
  std::thread worker([&stop] {
    while (!stop) use_cuda(1);
  });
  use_cuda(1);
  // The address sanitizer's allocator keeps its locks in a child, held by threads that are not
  // there.
  const bool can_allocate = dlsym(RTLD_DEFAULT, "__asan_init") == nullptr;
  int wrong = 0;
  for (int i = 0; i < 300; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      // The dynamic linker's locks are nobody's in a child, unless a thread of ours held one.
      if (can_allocate) dlclose(dlopen("libc.so.6", RTLD_LAZY));
      void* p = nullptr;
      cudaMalloc(&p, 4096);
      cudaFree(p);
      std::_Exit(5);
    }
    if (wait_for(child) != 5) ++wrong;
  }
  stop = true;
  worker.join();
  say("children that ended wrongly", wrong);
}

void fork_before(bool parent_too) {
  const pid_t child = fork();
  if (child == 0) {
    use_cuda(8);
    std::exit(5);
  }
  say("child ended", wait_for(child));
  if (parent_too) use_cuda(4);
}

void vfork_and_exec() {
  use_cuda(2);
  const pid_t child = vfork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", "exit 6", nullptr);
    _exit(99);
  }
  say("child ended", wait_for(child));
  use_cuda(2);
}

void spawn_child() {
  use_cuda(2);
  char name[] = "sh";
  char option[] = "-c";
  char script[] = "echo spawned; exit 6";
  char* arguments[] = {name, option, script, nullptr};
  pid_t child = 0;
  MUST(posix_spawn(&child, "/bin/sh", nullptr, nullptr, arguments, environ));
  say("child ended", wait_for(child));
  use_cuda(2);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "after");
  if (mode == "after") fork_after(true);
  if (mode == "after_idle") fork_after(false);
  if (mode == "busy") fork_while_busy();
  if (mode == "before") fork_before(false);
  if (mode == "both") fork_before(true);
  if (mode == "vfork") vfork_and_exec();
  if (mode == "spawn") spawn_child();
  if (mode == "system") {
    use_cuda(2);
    say("system", std::system("echo listed; exit 6"));
    use_cuda(2);
  }
  say("done", 0);
  return 0;
}
