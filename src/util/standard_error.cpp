// SPDX-License-Identifier: Apache-2.0
// A file is identified by device and inode, which stay the same when it is renamed.
#include "util/standard_error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

namespace cupool::util {

namespace {

struct Noted {
  std::atomic<bool> valid{false};
  std::atomic<std::uint64_t> device{0};
  std::atomic<std::uint64_t> inode{0};

  bool is(const struct stat& status) const {
    return valid.load(std::memory_order_acquire) &&
           device.load(std::memory_order_relaxed) == status.st_dev &&
           inode.load(std::memory_order_relaxed) == status.st_ino;
  }
};

// One descriptor. Standard error is the first.
struct Place {
  std::atomic<int> descriptor{-1};
  std::atomic<bool> any_noted{false};
  Noted started_with;
  Noted redirected_to;
};
std::array<Place, 8> places;

// The entry of a descriptor. Without one: a free entry if `add`; null if none is left.
Place* place_of(int descriptor, bool add) {
  if (descriptor == STDERR_FILENO) return &places[0];
  for (std::size_t i = 1; i < places.size(); ++i) {
    int owner = places[i].descriptor.load(std::memory_order_acquire);
    if (owner == -1 && add &&
        places[i].descriptor.compare_exchange_strong(owner, descriptor,
                                                     std::memory_order_acq_rel)) {
      return &places[i];
    }
    if (owner == descriptor) return &places[i];
  }
  return nullptr;
}

void note(Place& place, int descriptor, bool from_start) {
  const int saved_errno = errno;
  Noted& noted = from_start ? place.started_with : place.redirected_to;
  struct stat status {};
  const bool open =
      fstat(descriptor, &status) == 0 && !(from_start && fcntl(descriptor, F_GETFD) != 0);
  noted.valid.store(false, std::memory_order_relaxed);
  noted.device.store(status.st_dev, std::memory_order_relaxed);
  noted.inode.store(status.st_ino, std::memory_order_relaxed);
  noted.valid.store(open, std::memory_order_release);
  place.any_noted.store(true, std::memory_order_release);
  errno = saved_errno;
}

}  // namespace

int descriptor_named(std::string_view path) noexcept {
  if (path == "/dev/stdin") return STDIN_FILENO;
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (path.substr(0, folder.size()) != folder || path.size() == folder.size()) continue;
    int number = 0;
    for (const char digit : path.substr(folder.size())) {
      if (digit < '0' || digit > '9' || number > 1'000'000) return -1;
      number = number * 10 + (digit - '0');
    }
    return number;
  }
  return -1;
}

void note_standard_error(bool from_start) noexcept {
  note(places[0], STDERR_FILENO, from_start);
}

void note_descriptor(int descriptor) noexcept {
  if (descriptor < 0) return;
  Place* const place = place_of(descriptor, true);
  if (place != nullptr && !place->any_noted.load(std::memory_order_acquire)) {
    note(*place, descriptor, true);
  }
}

void note_redirection(int descriptor) noexcept {
  Place* const place = place_of(descriptor, false);
  if (place != nullptr) note(*place, descriptor, false);
}

bool write_descriptor(int descriptor, const char* data, std::size_t size, std::size_t* taken,
                      int patience_ms) noexcept {
  if (taken != nullptr) *taken = 0;
  if (descriptor != STDERR_FILENO) note_descriptor(descriptor);
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return false;
  Place* const place = place_of(descriptor, false);
  const bool known =
      place != nullptr && (!place->any_noted.load(std::memory_order_acquire) ||
                           place->started_with.is(status) || place->redirected_to.is(status));
  if (!known) errno = EBADF;
  return known && write_all(descriptor, data, size, taken, patience_ms);
}

bool write_standard_error(const char* data, std::size_t size) noexcept {
  return write_descriptor(STDERR_FILENO, data, size);
}

}  // namespace cupool::util
