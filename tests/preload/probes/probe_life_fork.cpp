// SPDX-License-Identifier: Apache-2.0
// Processes made at inconvenient moments (contract 11, I6). mode= busy (threads hold whatever locks
// there are while their process forks; the children leave by exit, _exit, exec, pthread_exit),
// init_only (the parent has initialised CUDA and allocated nothing), start_race (fork during the
// first allocation), nested (a child forks again), daemon (double fork, then CUDA), workers
// (children that use CUDA, made by a parent that does not), self (posix_spawn of this program),
// loads (threads of a parent without CUDA load and close a library, library=, meanwhile; the
// children close a handle), namespace (run as number 1 of a pid namespace: so is its child, in
// another one).
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"
#include "probe_child.h"

extern char** environ;

using probe::say;
using probe::wait_for;

namespace {

constexpr int kPatienceSeconds = 30;  // a child that hangs dies of SIGALRM, which shows

void use_cuda(int times) {
  for (int i = 0; i < times; ++i) {
    void* p = nullptr;
    MUST(cudaMalloc(&p, size_t{4096} << (i % 10)));
    MUST(cudaMemset(p, i, 4096));
    MUST(cudaFree(p));
  }
}

// What CUDA answers in a child: the same number for every call if all is well. The driver is asked
// as well, since a runtime may refuse before it asks.
int refusals() {
  alarm(kPatienceSeconds);
  CUdeviceptr block = 0;
  if (cuMemAlloc(&block, 4096) != CUDA_ERROR_NOT_INITIALIZED) return 80;
  if (cuMemFree(block) != CUDA_ERROR_NOT_INITIALIZED) return 81;
  void* p = nullptr;
  const int malloc_code = cudaMalloc(&p, 4096);
  if (cudaMalloc(&p, 64 << 20) != malloc_code) return 90;
  if (cudaDeviceSynchronize() != malloc_code) return 91;
  return malloc_code;
}

std::atomic<bool> stop{false};

void allocate_until_stopped(int lane) {
  for (int i = lane; !stop; ++i) {
    void* p = nullptr;
    MUST(cudaMalloc(&p, size_t{512} << (i % 16)));
    MUST(cudaFree(p));
  }
}

void make_threads_until_stopped() {
  while (!stop) std::thread(use_cuda, 2).join();
}

// A thread that has used CUDA forks; its twin in the child ends as threads do.
void fork_in_thread(int* ended) {
  use_cuda(1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(kPatienceSeconds);
    pthread_exit(nullptr);
  }
  *ended = wait_for(child);
}

void fork_while_busy() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(allocate_until_stopped, i);
  threads.emplace_back(make_threads_until_stopped);
  use_cuda(1);
  std::vector<int> endings(4, -1);
  int wrong = 0;
  for (int i = 0; i < 60; ++i) {
    int ended = -1;
    const int kind = i % 4;
    if (kind == 3) {
      std::thread(fork_in_thread, &ended).join();
    } else {
      const pid_t child = fork();
      if (child == 0) {
        const int code = refusals();
        if (kind == 0) std::exit(code);
        if (kind == 1) _exit(code);
        execl("/bin/sh", "sh", "-c", "exit 6", nullptr);
        _exit(99);
      }
      ended = wait_for(child);
    }
    int& first = endings[static_cast<size_t>(kind)];
    if (first == -1) first = ended;
    if (first != ended) ++wrong;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  say("by exit", endings[0]);
  say("by _exit", endings[1]);
  say("by exec", endings[2]);
  say("by the end of its thread", endings[3]);
  say("children that ended otherwise", wrong);
  use_cuda(4);
}

void fork_after_initialisation() {
  int devices = 0;
  MUST(cudaGetDeviceCount(&devices));
  MUST(cudaFree(nullptr));
  const pid_t child = fork();
  if (child == 0) std::exit(refusals());
  say("child ended", wait_for(child));
}

// Thirty processes whose first allocation, in a thread, meets a fork.
void fork_during_start() {
  int wrong = 0;
  for (int i = 0; i < 30; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      MUST(cudaFree(nullptr));
      std::atomic<bool> go{false};
      std::thread first([&go] {
        while (!go) {
        }
        use_cuda(1);
      });
      go = true;
      const auto moment = std::chrono::steady_clock::now() + std::chrono::microseconds(15 * i);
      while (std::chrono::steady_clock::now() < moment) {
      }
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(refusals());
      first.join();
      std::exit(wait_for(grandchild) == cudaErrorInitializationError ? 5 : 6);
    }
    if (wait_for(child) != 5) ++wrong;
  }
  say("children that ended wrongly", wrong);
}

void fork_nested() {
  use_cuda(3);
  const pid_t child = fork();
  if (child == 0) {
    const pid_t grandchild = fork();
    if (grandchild == 0) std::exit(refusals());
    say("grandchild ended", wait_for(grandchild));
    std::exit(refusals());
  }
  say("child ended", wait_for(child));
}

void become_daemon() {
  int parents[2];  // open as long as they are there
  MUST(pipe(parents));
  const pid_t child = fork();
  if (child > 0) {
    say("left behind", wait_for(child));
    return;  // with its end of the pipe
  }
  close(parents[1]);
  setsid();
  if (fork() > 0) _exit(0);
  char byte = 0;
  while (read(parents[0], &byte, 1) < 0) {
  }
  for (int descriptor = 3; descriptor < 256; ++descriptor) close(descriptor);
  use_cuda(8);
  say("the daemon has worked", 8);
}

void make_workers() {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      use_cuda(5 + i);
      if (i % 2 == 0) _exit(20 + i);
      std::exit(20 + i);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) say("worker ended", wait_for(child));
}

void spawn_self(char* program) {
  use_cuda(2);
  char mode[] = "mode=child";
  char* arguments[] = {program, mode, nullptr};
  pid_t child = 0;
  MUST(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ));
  say("child ended", wait_for(child));
  use_cuda(2);
}

// The C library lets a child look functions up and give handles back, whatever its parent's threads
// were loading; what it holds then is the lock of the list of objects.
void fork_while_loading(const char* library) {
  void* const itself = dlopen(nullptr, RTLD_LAZY);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([library] {
      while (!stop) dlclose(dlopen(library, RTLD_NOW));
    });
  }
  int wrong = 0;
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(2);
      dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
      _exit(dlclose(itself));
    }
    if (wait_for(child) != 0 && ++wrong == 5) break;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  say("children that ended wrongly", wrong);
}

void fork_into_namespace() {
  use_cuda(2);
  MUST(unshare(CLONE_NEWPID));
  const pid_t child = fork();
  if (child == 0) {
    say("number in its namespace", getpid());
    std::exit(0);
  }
  say("child ended", wait_for(child));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "busy");
  if (mode == "busy") fork_while_busy();
  if (mode == "init_only") fork_after_initialisation();
  if (mode == "start_race") fork_during_start();
  if (mode == "nested") fork_nested();
  if (mode == "daemon") become_daemon();
  if (mode == "workers") make_workers();
  if (mode == "self") spawn_self(argv[0]);
  if (mode == "loads") fork_while_loading(probe::argument(argc, argv, "library", ""));
  if (mode == "namespace") fork_into_namespace();
  if (mode == "child") use_cuda(3);
  return 0;
}
