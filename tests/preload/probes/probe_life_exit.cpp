// SPDX-License-Identifier: Apache-2.0
// How a process ends while it is in the middle of something (contract 11). mode= busy_exit,
// busy_return, busy__exit, busy_quick_exit, busy_abort, busy_term, busy_segv (eight threads
// allocate and free meanwhile), thread_exit (a thread calls exit, main allocates), main_ends (main
// ends by pthread_exit), statics (static objects and exit handlers allocate and free), handler_exit
// (a signal handler that interrupts an allocation, or what in= says: heap malloc(), aligned
// aligned_alloc(), trim malloc_trim(), time localtime_r(); it leaves by call= _exit, exit or
// quick_exit), handler_lock (the handler comes while the lock=th lock of cupool's is held, and
// an exit handler frees and allocates; with work=1 both submit work to two streams and pin memory),
// handler_pause and handler_wait (one that interrupts
// pause(), or the driver's wait for a stream, calls exit), handler_prologue (one that interrupts a
// function right behind the move of its stack pointer), full_pipe (_exit where the report cannot
// be written), alarm_pending (_exit with one), signal_stack (_exit on one of bytes=N). Exit code 7,
// so that a lost code shows.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

#if defined(__SANITIZE_THREAD__)
// It takes the reuse of a detached thread's stack, thread-local data included, for a race.
// Visible: the sanitizer's library looks it up.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:_dl_deallocate_tls\n";
}
#endif

namespace {

constexpr int kExitCode = 7;
constexpr int kBusyThreads = 8;

std::atomic<int> busy_threads{0};

// Until the driver is gone: then the calls fail, and the thread ends.
void work_until_refused(int lane) {
  bool counted = false;
  for (unsigned i = 0;; ++i) {
    void* p = nullptr;
    void* q = nullptr;
    if (cudaMalloc(&p, size_t{512} << ((i + static_cast<unsigned>(lane)) % 14)) != cudaSuccess) {
      return;
    }
    if (cudaMalloc(&q, 4096) != cudaSuccess) return;
    if (cudaFree(p) != cudaSuccess || cudaFree(q) != cudaSuccess) return;
    if (!counted) ++busy_threads;
    counted = true;
  }
}

void start_busy_threads() {
  for (int i = 0; i < kBusyThreads; ++i) std::thread(work_until_refused, i).detach();
  while (busy_threads < kBusyThreads) std::this_thread::yield();
}

void say(const char* text) {
  std::printf("%s\n", text);
  std::fflush(stdout);
}

[[noreturn]] void exit_from_thread() {
  std::thread([] {
    start_busy_threads();
    say("a thread leaves");
    std::exit(kExitCode);
  }).detach();
  work_until_refused(1);
  for (;;) pause();
}

[[noreturn]] void main_ends_first() {
  static std::atomic<bool> worked{false};
  std::thread([] {
    while (!worked) std::this_thread::yield();
    usleep(2000);
    void* p = nullptr;
    MUST(cudaMalloc(&p, 4096));
    MUST(cudaFree(p));
    say("main has ended");
    std::exit(kExitCode);
  }).detach();
  void* p = nullptr;
  MUST(cudaMalloc(&p, 1 << 20));
  MUST(cudaFree(p));
  worked = true;
  pthread_exit(nullptr);
}

// Allocated before main, and used until after the last exit handler.
bool with_statics = false;

void use_late(const char* where, void** block) {
  void* more = nullptr;
  const int free_code = cudaFree(*block);
  const int malloc_code = cudaMalloc(&more, 4096);
  const int second_free_code = malloc_code == cudaSuccess ? cudaFree(more) : 0;
  std::printf("%s: free %d malloc %d free %d\n", where, free_code, malloc_code, second_free_code);
  std::fflush(stdout);
}

struct Global {
  explicit Global(const char* where) : where_(where) {}
  ~Global() {
    if (with_statics) use_late(where_, &block_);
  }
  void allocate() { MUST(cudaMalloc(&block_, 3 << 20)); }
  const char* where_;
  void* block_ = nullptr;
};

Global early{"static object"};
void* block_of_early_handler = nullptr;
void* block_of_late_handler = nullptr;

void run_with_statics() {
  with_statics = true;
  std::atexit([] { use_late("handler from before the first use", &block_of_early_handler); });
  early.allocate();
  MUST(cudaMalloc(&block_of_early_handler, 4096));
  MUST(cudaMalloc(&block_of_late_handler, 4096));
  std::atexit([] { use_late("handler from after the first use", &block_of_late_handler); });
  static Global late{"function's static object"};
  late.allocate();
}

void (*leave)(int) = _exit;

void leave_on_usr1(const std::string& call) {
  if (call == "exit") leave = std::exit;
  if (call == "quick_exit") leave = std::quick_exit;
  signal(SIGUSR1, [](int) { leave(kExitCode); });
}

void interrupt_this_thread(unsigned after_us) {
  const pthread_t target = pthread_self();
  std::thread([target, after_us] {
    usleep(after_us);
    pthread_kill(target, SIGUSR1);
  }).detach();
}

// Calls of the C library that hold a lock of its own.
[[noreturn]] void use_the_library(const std::string& what) {
  for (size_t i = 0;; ++i) {
    if (what == "trim") {
      malloc_trim(0);
    } else if (what == "time") {
      const time_t now = static_cast<time_t>(i);
      tm parts{};
      localtime_r(&now, &parts);
    } else {
      const size_t bytes = 2048 + i % 1000 * 64;
      void* volatile block = what == "aligned" ? std::aligned_alloc(64, bytes) : std::malloc(bytes);
      std::free(block);
    }
  }
}

// The children that have not ended with the right code within ten seconds.
int wrong_ends(std::vector<pid_t> children) {
  int wrong = 0;
  for (int waits = 0; !children.empty() && waits < 1000; ++waits, usleep(10'000)) {
    for (size_t i = 0; i < children.size();) {
      int status = 0;
      if (waitpid(children[i], &status, WNOHANG) == 0) {
        ++i;
        continue;
      }
      if (!WIFEXITED(status) || WEXITSTATUS(status) != kExitCode) ++wrong;
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const pid_t hanging : children) {
    kill(hanging, SIGKILL);
    waitpid(hanging, nullptr, 0);
  }
  return wrong + static_cast<int>(children.size());
}

// Twelve processes, each interrupted somewhere in a loop of allocations.
void leave_in_handlers(const std::string& call, const std::string& what) {
  constexpr int kProcesses = 12;
  std::vector<pid_t> children;
  for (int child = 0; child < kProcesses; ++child) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    leave_on_usr1(call);
    void* p = nullptr;
    MUST(cudaMalloc(&p, 4096));
    interrupt_this_thread(500 + 137 * static_cast<unsigned>(child));
    if (!what.empty()) use_the_library(what);
    work_until_refused(child);
  }
  std::printf("children that ended wrongly: %d\n", wrong_ends(children));
}

std::atomic<int> locks_to_come{0};  // the last of them is awaited
void* freed_at_exit = nullptr;

cudaStream_t other_stream = nullptr;

// What takes the locks of lanes and of pinned memory. Not checked: the driver may be leaving.
void submit_and_pin() {
  void* host = nullptr;
  static_cast<void>(cudaMemsetAsync(freed_at_exit, 1, 64, nullptr));
  static_cast<void>(cudaMemsetAsync(freed_at_exit, 2, 64, other_stream));
  if (cudaMallocHost(&host, 64) == cudaSuccess) static_cast<void>(cudaFreeHost(host));
}

[[noreturn]] void leave_with_a_lock(int number, bool works) {
  leave_on_usr1("exit");
  if (works) {
    MUST(cudaMalloc(&freed_at_exit, 4096));
    MUST(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking));
    std::atexit([] {
      submit_and_pin();
      MUST(cudaStreamDestroy(other_stream));
      MUST(cudaFree(freed_at_exit));
      say("worked");
    });
    locks_to_come = number;
    for (;;) submit_and_pin();
  }
  MUST(cudaMalloc(&freed_at_exit, 4096));
  MUST(cudaFree(nullptr));
  std::atexit([] {
    void* more = nullptr;
    MUST(cudaFree(freed_at_exit));
    MUST(cudaMalloc(&more, 4096));
    say("freed and allocated");
  });
  locks_to_come = number;
  work_until_refused(0);
  for (;;) pause();
}

// Interrupted where no lock is held.
[[noreturn]] void leave_at_rest(bool in_driver) {
  leave_on_usr1("exit");
  void* p = nullptr;
  MUST(cudaMalloc(&p, 4096));
  interrupt_this_thread(100'000);
  if (in_driver) {
    MUST(cudaLaunchHostFunc(
        nullptr, [](void*) { sleep(5); }, nullptr));
    MUST(cudaStreamSynchronize(nullptr));
  }
  for (;;) pause();
}

#if defined(__x86_64__)
// Whoever takes the stack for what it was one instruction before the fault finds, where the address
// of the caller should be, one in a function with a frame pointer, and none at the frame pointer's.
asm(R"(
  .text
  .type fault_in_prologue, @function
fault_in_prologue:
  .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  lea within_framed(%rip), %rax
  mov %rax, -24(%rsp)
  movq $0, -32(%rsp)
  sub $32, %rsp
  .cfi_def_cfa_offset 48
  ud2
  .cfi_endproc
  .type framed, @function
framed:
  .cfi_startproc
  .cfi_def_cfa %rbp, 16
  .cfi_offset %rbp, -16
  nop
within_framed:
  nop
  ud2
  .cfi_endproc
)");
extern "C" void fault_in_prologue();

[[noreturn]] void leave_in_prologue() {
  void* p = nullptr;
  MUST(cudaMalloc(&p, 4096));
  leave_on_usr1("exit");
  signal(SIGILL, [](int) { leave(kExitCode); });
  fault_in_prologue();
  std::abort();
}
#endif

// Nobody reads standard error any more, and alarms are blocked: the report can never be written.
[[noreturn]] void leave_with_a_full_pipe() {
  void* p = nullptr;
  MUST(cudaMalloc(&p, 4096));
  int ends[2];
  if (pipe2(ends, O_NONBLOCK) != 0) std::abort();
  const std::vector<char> page(4096);
  while (write(ends[1], page.data(), page.size()) > 0) {
  }
  if (fcntl(ends[1], F_SETFL, 0) != 0 || dup2(ends[1], STDERR_FILENO) < 0) std::abort();
  signal(SIGALRM, SIG_IGN);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  _exit(kExitCode);
}

// An alarm is pending, as in a program that takes it by sigwait().
[[noreturn]] void leave_with_an_alarm_pending() {
  void* p = nullptr;
  MUST(cudaMalloc(&p, 4096));
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm_only, nullptr);
  raise(SIGALRM);
  say("leaving");
  _exit(kExitCode);
}

void leave_at_once(int) {
  _exit(kExitCode);
}

// On a signal stack of the size that the C library once told, with a page below it that nobody may
// write.
[[noreturn]] void leave_on_a_small_stack(size_t bytes) {
  void* p = nullptr;
  MUST(cudaMalloc(&p, 4096));
  constexpr size_t kBelow = size_t{1} << 20;
  void* const all = mmap(nullptr, kBelow + bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(all != MAP_FAILED);
  stack_t stack{};
  stack.ss_sp = static_cast<char*>(all) + kBelow;
  stack.ss_size = bytes;
  CHECK(mprotect(stack.ss_sp, bytes, PROT_READ | PROT_WRITE) == 0);
  CHECK(sigaltstack(&stack, nullptr) == 0);
  struct sigaction action {};
  action.sa_handler = leave_at_once;
  action.sa_flags = SA_ONSTACK;
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  say("leaving");
  raise(SIGUSR1);
  std::abort();
}

[[noreturn]] void die_of(int signal_number) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(signal_number, SIG_DFL);  // a sanitizer handles some of them
  raise(signal_number);
  _exit(kExitCode);
}

}  // namespace

// cupool's own threads take no signals.
static bool takes_signals() {
  sigset_t blocked;
  return pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0 &&
         sigismember(&blocked, SIGUSR1) == 0;
}

// Stands before the C library's: a signal comes with one of the locks that cupool takes.
extern "C" __attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t* mutex) {
  // No static with a guard: some C++ runtimes take a mutex for it.
  static std::atomic<int (*)(pthread_mutex_t*)> found{nullptr};
  auto real = found.load();
  if (real == nullptr) {
    real = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    found = real;
  }
  const int result = real(mutex);
  Dl_info caller = {};
  if (locks_to_come > 0 && takes_signals() && dladdr(__builtin_return_address(0), &caller) != 0 &&
      std::strstr(caller.dli_fname, "libcupool") != nullptr && locks_to_come.fetch_sub(1) == 1) {
    raise(SIGUSR1);
  }
  return result;
}

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "busy_exit");
  if (mode == "thread_exit") exit_from_thread();
  if (mode == "main_ends") main_ends_first();
  if (mode == "handler_exit") {
    leave_in_handlers(probe::argument(argc, argv, "call", "_exit"),
                      probe::argument(argc, argv, "in", ""));
    return kExitCode;
  }
  if (mode == "handler_lock") {
    leave_with_a_lock(std::atoi(probe::argument(argc, argv, "lock", "1")),
                      probe::number(argc, argv, "work", 0) != 0);
  }
#if defined(__x86_64__)
  if (mode == "handler_prologue") leave_in_prologue();
#endif
  if (mode == "handler_pause" || mode == "handler_wait") leave_at_rest(mode == "handler_wait");
  if (mode == "statics") {
    run_with_statics();
    return kExitCode;
  }
  if (mode == "full_pipe") leave_with_a_full_pipe();
  if (mode == "alarm_pending") leave_with_an_alarm_pending();
  if (mode == "signal_stack") {
    leave_on_a_small_stack(static_cast<size_t>(probe::number(argc, argv, "bytes", 8192)));
  }
  start_busy_threads();
  say("leaving");
  if (mode == "busy_exit") std::exit(kExitCode);
  if (mode == "busy__exit") _exit(kExitCode);
  if (mode == "busy_quick_exit") std::quick_exit(kExitCode);
  if (mode == "busy_abort") die_of(SIGABRT);
  if (mode == "busy_term") die_of(SIGTERM);
  if (mode == "busy_segv") die_of(SIGSEGV);
  return kExitCode;
}
