// SPDX-License-Identifier: Apache-2.0
// A process of an IPC scenario, as its conductor sees it: started, ordered about, ended.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "probe.h"
#include "probe_child.h"
#include "probe_ipc.h"

namespace ipc_probe {

inline std::string self;  ///< full path of the conductor's program

struct Handle {
  unsigned char bytes[64];
};

// One process of the scenario.
class Peer {
 public:
  explicit Peer(const std::string& variable = "", bool preloaded = true) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    process_ = fork();
    if (process_ == 0) {
      close(ends[0]);
      const std::string program = self + "_peer";
      const std::string channel = "channel=" + std::to_string(ends[1]);
      const size_t colon = variable.find(':');
      if (colon != std::string::npos) {
        setenv(variable.substr(0, colon).c_str(), variable.substr(colon + 1).c_str(), 1);
      }
      if (!preloaded) unsetenv("LD_PRELOAD");
      execl(program.c_str(), program.c_str(), channel.c_str(), nullptr);
      _exit(99);
    }
    close(ends[1]);
    channel_ = ends[0];
    MUST(fcntl(channel_, F_SETFD, FD_CLOEXEC));  // not for later peers to hold open
  }
  ~Peer() {
    if (process_ <= 0) return;
    Answer answer;
    if (try_order(Order{}, &answer))
      wait();
    else
      end(SIGKILL);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Answer order(Verb verb, int slot = 0, uint64_t bytes = 0, int value = 0,
               const Handle* handle = nullptr) {
    Order order;
    order.verb = verb;
    order.slot = slot;
    order.bytes = bytes;
    order.value = value;
    order.by_kernel = verb == Verb::check && kernels ? 1 : 0;
    if (handle != nullptr) std::memcpy(order.handle, handle->bytes, sizeof order.handle);
    Answer answer;
    if (!try_order(order, &answer))
      probe::fail_check("a process of the scenario died", self.c_str(), static_cast<int>(verb));
    return answer;
  }

  void allocate(int slot, uint64_t bytes, int value) {
    MUST(order(Verb::allocate, slot, bytes).code);
    MUST(order(Verb::fill, slot, bytes, value).code);
  }
  Handle handle(int slot, uint64_t offset = 0) {
    const Answer answer = order(Verb::get_handle, slot, offset);
    MUST(answer.code);
    Handle handle;
    std::memcpy(handle.bytes, answer.handle, sizeof handle.bytes);
    return handle;
  }
  Answer open(int slot, const Handle& handle) { return order(Verb::open, slot, 0, 0, &handle); }
  // -1: the call failed; else how many bytes are wrong.
  long wrong(int slot, uint64_t bytes, int value) {
    const Answer answer = order(Verb::check, slot, bytes, value);
    return answer.code != 0 ? -1 : static_cast<long>(answer.number);
  }
  // Checks are made by kernels, too. Off where driver calls are made to fail.
  bool kernels = true;

  uint64_t free_bytes() { return order(Verb::free_bytes).number; }
  // Frees and allocations, in which what other processes gave up is given back.
  void churn(int slot) {
    for (int i = 0; i < 3; ++i) {
      MUST(order(Verb::allocate, slot, (5 << 20) + (i << 21)).code);
      MUST(order(Verb::release, slot).code);
    }
  }

  void signal(int number) const { kill(process_, number); }
  /// Returns when no thread of it runs any more.
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    while (waitpid(process_, &status, WUNTRACED) == process_ && !WIFSTOPPED(status)) {
    }
  }
  int end(int number) {
    signal(number);
    return wait();
  }

 private:
  bool try_order(const Order& order, Answer* answer) const {
    return send(channel_, &order, sizeof order, MSG_NOSIGNAL) ==
               static_cast<ssize_t>(sizeof order) &&
           read(channel_, answer, sizeof *answer) == static_cast<ssize_t>(sizeof *answer);
  }
  int wait() {
    const int ended = probe::wait_for(process_);
    process_ = -1;
    close(channel_);
    return ended;
  }

  pid_t process_ = -1;
  int channel_ = -1;
};

}  // namespace ipc_probe
