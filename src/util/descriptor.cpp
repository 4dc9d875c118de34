// SPDX-License-Identifier: Apache-2.0
// A table of the open descriptors, which a handler of fork() can go through.
#include "util/descriptor.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

namespace cupool::util {
namespace {

// The kernel's name for what has no file, "anon_inode:[pidfd]" for one.
std::array<char, 24> kind_of(int number) {
  char path[32];
  std::array<char, 24> kind{};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", number);
  if (readlink(path, kind.data(), kind.size() - 1) < 0) kind = {};
  return kind;
}

}  // namespace

KnownFile::KnownFile(int number) : behind_(number < 0 ? 0 : number + 1) {
  struct stat status {};
  if (number < 0 || fstat(number, &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if ((status.st_mode & S_IFMT) == 0) kind_ = kind_of(number);
}

bool KnownFile::is_there() const {
  struct stat status {};
  return behind_ > 0 && fstat(number(), &status) == 0 && status.st_dev == device_ &&
         status.st_ino == inode_ && (kind_[0] == '\0' || kind_of(number()) == kind_);
}

// Their number also bounds what IPC may hold open: the server's connections, and one for each
// exporter.
struct Descriptor::Place {
  enum State { unused, taken, open };
  std::atomic<State> state{unused};
  KnownFile file;
};
std::array<Descriptor::Place, 1024> Descriptor::places_{};

Descriptor::Descriptor(int file) {
  if (file < 0) return;
  for (Place& place : places_) {
    Place::State unused = Place::unused;
    if (place.state.load(std::memory_order_relaxed) != unused ||
        !place.state.compare_exchange_strong(unused, Place::taken, std::memory_order_acquire)) {
      continue;
    }
    place.file = KnownFile(file);
    place.state.store(Place::open, std::memory_order_release);
    place_ = &place;
    return;
  }
  close(file);
  errno = EMFILE;
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    place_ = other.place_;
    other.place_ = nullptr;
  }
  return *this;
}

const KnownFile& Descriptor::known() const {
  static const KnownFile none;
  return place_ != nullptr ? place_->file : none;
}

bool Descriptor::keeps() {
  if (place_ != nullptr && !place_->file.is_there()) reset();
  return place_ != nullptr;
}

void Descriptor::reset() {
  if (place_ == nullptr) return;
  const KnownFile file = place_->file;
  place_->state.store(Place::unused, std::memory_order_release);
  place_ = nullptr;
  if (file.is_there()) close(file.number());
}

void close_in_child() {
  for (Descriptor::Place& place : Descriptor::places_) {
    const auto state = place.state.exchange(Descriptor::Place::unused, std::memory_order_acquire);
    if (state == Descriptor::Place::open && place.file.is_there()) close(place.file.number());
  }
}

}  // namespace cupool::util
