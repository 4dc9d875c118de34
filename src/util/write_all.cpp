// Writing with SIGPIPE held back: blocked for this thread, and taken if the write raised it.
#include "util/write_all.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

namespace cupool::util {

namespace {

constexpr int kPatienceMs = 2000;

// Blocks SIGPIPE in this thread for its lifetime. The signal of a failed write is directed to the
// thread that wrote, so taking it here takes nobody else's; one that was pending before stays.
class SigpipeHeldBack {
 public:
  SigpipeHeldBack() noexcept {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    was_pending_ = is_pending();
    active_ = pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_) == 0;
  }
  ~SigpipeHeldBack() {
    if (!active_) return;
    const int saved_errno = errno;
    if (!was_pending_ && is_pending()) {
      const timespec at_once{};
      while (sigtimedwait(&sigpipe_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved_errno;
  }
  SigpipeHeldBack(const SigpipeHeldBack&) = delete;
  SigpipeHeldBack& operator=(const SigpipeHeldBack&) = delete;

 private:
  static bool is_pending() noexcept {
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
  }

  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
  bool active_ = false;
};

}  // namespace

bool write_all(int fd, const char* data, std::size_t size) noexcept {
  const SigpipeHeldBack held_back;
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written > 0) {
      data += written;
      size -= static_cast<std::size_t>(written);
      continue;
    }
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      pollfd room{fd, POLLOUT, 0};
      if (::poll(&room, 1, kPatienceMs) > 0) continue;
      errno = EAGAIN;
    }
    return false;
  }
  return true;
}

}  // namespace cupool::util
