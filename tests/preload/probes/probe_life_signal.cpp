// SPDX-License-Identifier: Apache-2.0
// A program that is asked for a report while it runs (contract 11, CUPOOL_STATS_SIGNAL=USR1). mode=
// plain, busy (threads allocate, come and go), own_later, own_before, ignored, fork, capture,
// descriptors (the program closes all and opens its own), restart (a blocking read), leaving
// (signals until the end), tasks (prints the number of threads), killed (right after a snapshot).
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

void use_cuda(int times) {
  for (int i = 0; i < times; ++i) {
    void* p = nullptr;
    MUST(cudaMalloc(&p, size_t{4096} << (i % 10)));
    MUST(cudaFree(p));
  }
}

// The file of the n-th snapshot: report-%p.json becomes report-1234.1.json.
std::string file_of_snapshot(int number) {
  std::string path = std::getenv("CUPOOL_STATS_FILE");
  path.replace(path.find("%p"), 2, std::to_string(getpid()));
  return path.insert(path.rfind('.'), "." + std::to_string(number));
}

bool comes_snapshot(int number, int patience_ms) {
  const std::string path = file_of_snapshot(number);
  for (int waited = 0; waited < patience_ms; ++waited) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
      const off_t size = lseek(file, 0, SEEK_END);
      char last = 0;
      const bool whole = size > 2 && pread(file, &last, 1, size - 2) == 1 && last == '}';
      close(file);
      if (whole) return true;
    }
    usleep(1000);
  }
  return false;
}

void ask_and_wait(int number) {
  CHECK(kill(getpid(), SIGUSR1) == 0);
  CHECK(comes_snapshot(number, 20000));
}

std::atomic<int> handled{0};
void handle(int) {
  ++handled;
}

void with_own_handler() {
  CHECK(kill(getpid(), SIGUSR1) == 0);
  while (handled == 0) usleep(100);
  CHECK(!comes_snapshot(1, 200));
  std::printf("handled %d\n", handled.load());
}

void while_busy() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&stop] {
      while (!stop) use_cuda(20);
    });
  }
  threads.emplace_back([&stop] {
    while (!stop) std::thread(use_cuda, 3).join();
  });
  for (int i = 0; i < 200; ++i) {
    CHECK(kill(getpid(), SIGUSR1) == 0);
    usleep(300);
  }
  ask_and_wait(1);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

void in_child() {
  const pid_t child = fork();
  if (child == 0) {
    CHECK(kill(getpid(), SIGUSR1) == 0);
    usleep(50000);
    _exit(5);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  CHECK(!comes_snapshot(1, 100));
  std::printf("child ended %d\n", WEXITSTATUS(status));
  ask_and_wait(1);  // the parent still answers
}

void during_capture() {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void* p = nullptr;
  MUST(cudaMalloc(&p, 4096));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  MUST(cudaMemsetAsync(p, 1, 4096, stream));
  ask_and_wait(1);
  cudaGraph_t graph = nullptr;
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphDestroy(graph));
  MUST(cudaFree(p));
}

// Whatever descriptor somebody kept, its number now belongs to the program.
void with_closed_descriptors() {
  const int limit = 64;
  for (int descriptor = 3; descriptor < limit; ++descriptor) close(descriptor);
  char name[] = "/tmp/cupool-probe-XXXXXX";
  const int mine = mkstemp(name);
  CHECK(mine >= 0);
  unlink(name);
  for (int descriptor = 3; descriptor < limit; ++descriptor) dup2(mine, descriptor);
  ask_and_wait(1);
  CHECK(lseek(mine, 0, SEEK_END) == 0);
}

void while_reading() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  std::thread asker([&ends] {
    usleep(20000);
    ask_and_wait(1);
    CHECK(write(ends[1], "x", 1) == 1);
  });
  char got = 0;
  CHECK(read(ends[0], &got, 1) == 1);  // would be -1, EINTR
  asker.join();
}

void until_the_end() {
  std::thread([] {
    for (;;) kill(getpid(), SIGUSR1);
  }).detach();
  // Long enough that one of the signals has its snapshot while the program still works.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (std::chrono::steady_clock::now() < end) use_cuda(200);
}

void print_number_of_threads() {
  DIR* tasks = opendir("/proc/self/task");
  CHECK(tasks != nullptr);
  int number = 0;
  while (const dirent* task = readdir(tasks)) number += task->d_name[0] != '.';
  closedir(tasks);
  std::printf("threads %d\n", number);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "plain");
  if (mode == "own_before") signal(SIGUSR1, handle);
  if (mode == "ignored") signal(SIGUSR1, SIG_IGN);
  use_cuda(8);
  if (mode == "own_later") signal(SIGUSR1, handle);
  if (mode == "plain") {
    for (int number = 1; number <= 3; ++number) {
      ask_and_wait(number);
      use_cuda(8);
    }
  }
  if (mode == "busy") while_busy();
  if (mode == "own_later" || mode == "own_before") with_own_handler();
  if (mode == "ignored") CHECK(kill(getpid(), SIGUSR1) == 0 && !comes_snapshot(1, 200));
  if (mode == "fork") in_child();
  if (mode == "capture") during_capture();
  if (mode == "descriptors") with_closed_descriptors();
  if (mode == "restart") while_reading();
  if (mode == "leaving") until_the_end();
  if (mode == "tasks") print_number_of_threads();
  if (mode == "killed") {
    ask_and_wait(1);
    kill(getpid(), SIGKILL);
  }
  std::printf("done\n");
  return 0;
}
