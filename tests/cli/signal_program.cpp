// SPDX-License-Identifier: Apache-2.0
// A program that says on standard output what it receives: arguments, then signals by name.
// `signal_program wait`: prints "ready", then each of TERM INT HUP USR1 USR2 that arrives; ends
// with 7 at the second. `signal_program die N`: ends by signal N. `signal_program exit N`.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

struct Signal {
  int number;
  const char* name;
};

constexpr Signal kAwaited[] = {
    {SIGTERM, "TERM"}, {SIGINT, "INT"}, {SIGHUP, "HUP"}, {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}};

int wait_for_two() {
  sigset_t set;
  sigemptyset(&set);
  for (const Signal& awaited : kAwaited) sigaddset(&set, awaited.number);
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, &set, &blocked);
  // The command must not leave its own mask to the program.
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) {
    if (sigismember(&blocked, signal) == 1) std::printf("was blocked: %d\n", signal);
  }
  std::printf("ready\n");
  std::fflush(stdout);
  for (int received = 0; received < 2; ++received) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) return 1;
    for (const Signal& awaited : kAwaited) {
      if (awaited.number == signal) std::printf("%s\n", awaited.name);
    }
    std::fflush(stdout);
  }
  return 7;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "wait") == 0) return wait_for_two();
  if (argc == 3 && std::strcmp(argv[1], "exit") == 0) return std::atoi(argv[2]);
  if (argc == 3 && std::strcmp(argv[1], "die") == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(std::atoi(argv[2]), SIG_DFL);
    raise(std::atoi(argv[2]));
  }
  return 99;
}
