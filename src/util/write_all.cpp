// SPDX-License-Identifier: Apache-2.0
// Writes without SIGPIPE and SIGXFSZ: blocked for this thread, and consumed if the write raised
// one.
#include "util/write_all.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::util {

namespace {

// For its lifetime, blocks in this thread the signals of a failed write: SIGPIPE of a pipe without
// a reader, SIGXFSZ of a file past RLIMIT_FSIZE. The kernel directs them to the writing thread, so
// consuming them here takes no other thread's signal. One that was pending before stays.
class SignalsHeldBack {
 public:
  SignalsHeldBack() noexcept {
    sigemptyset(&held_);
    for (const int signal : kRaised) sigaddset(&held_, signal);
    if (sigpending(&pending_before_) != 0) sigemptyset(&pending_before_);
    active_ = pthread_sigmask(SIG_BLOCK, &held_, &before_) == 0;
  }
  ~SignalsHeldBack() {
    if (!active_) return;
    const int saved_errno = errno;
    for (const int signal : kRaised) take(signal);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved_errno;
  }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  static constexpr int kRaised[] = {SIGPIPE, SIGXFSZ};

  void take(int signal) const noexcept {
    sigset_t pending;
    if (sigismember(&pending_before_, signal) == 1) return;
    if (sigpending(&pending) != 0 || sigismember(&pending, signal) != 1) return;
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    const timespec at_once{};
    while (sigtimedwait(&only, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }

  sigset_t held_;
  sigset_t before_;
  sigset_t pending_before_;
  bool active_ = false;
};

// Signals of the program do not end the wait.
bool comes_room(int fd, int patience_ms) {
  const std::uint64_t end_ns = now_ns() + static_cast<std::uint64_t>(patience_ms) * 1'000'000;
  pollfd room{fd, POLLOUT, 0};
  for (int left_ms = patience_ms;;) {
    const int ready = ::poll(&room, 1, left_ms);
    if (ready >= 0 || errno != EINTR) return ready > 0;
    const std::uint64_t now = now_ns();
    left_ms = now < end_ns ? static_cast<int>((end_ns - now) / 1'000'000) : 0;
  }
}

}  // namespace

bool write_all(int fd, const char* data, std::size_t size, std::size_t* taken,
               int patience_ms) noexcept {
  std::size_t nobody_asks = 0;
  if (taken == nullptr) taken = &nobody_asks;
  *taken = 0;
  const Uncancelled throughout;
  const SignalsHeldBack held_back;
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written > 0) {
      data += written;
      size -= static_cast<std::size_t>(written);
      *taken += static_cast<std::size_t>(written);
      continue;
    }
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (comes_room(fd, patience_ms)) continue;
      errno = EAGAIN;
    }
    return false;
  }
  return true;
}

}  // namespace cupool::util
