// SPDX-License-Identifier: Apache-2.0
// A table of processes in a shared file. A lock of the file, which ends with its process, makes a
// look at the table and a change of it one step.
#include "driver/shared_use.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace cupool::sim {

namespace {

constexpr size_t kProcesses = 64;
constexpr size_t kDevices = 64;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

bool is_alive(int32_t process) {
  char path[64];
  char target[1];
  std::snprintf(path, sizeof path, "/proc/%d/exe", static_cast<int>(process));
  return readlink(path, target, sizeof target) > 0;  // a process that waits for its parent has none
}

class FileLock {
 public:
  explicit FileLock(int file) : file_(file) {
    while (flock(file_, LOCK_EX) != 0) {
    }
  }
  ~FileLock() { flock(file_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

}  // namespace

struct SharedUse::Entry {
  std::atomic<int32_t> process;
  std::atomic<uint64_t> bytes;
};

SharedUse::SharedUse(const std::string& file, int ordinal) {
  file_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const size_t bytes = sizeof(Entry) * kProcesses * kDevices;
  struct stat about {};
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)) != 0 || fstat(file_, &about) != 0) {
    die("cupool sim: CUPOOL_SIM_SHARED");
  }
  identity_ = about.st_ino;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) die("cupool sim: CUPOOL_SIM_SHARED");
  entries_ = static_cast<Entry*>(at) + kProcesses * static_cast<size_t>(ordinal);
  const FileLock lock(file_);
  for (size_t i = 0; i < kProcesses && own_ == nullptr; ++i) {
    if (entries_[i].process == 0 || !is_alive(entries_[i].process)) own_ = &entries_[i];
  }
  if (own_ == nullptr) die("cupool sim: CUPOOL_SIM_SHARED: too many processes");
  own_->bytes = 0;
  own_->process = getpid();
}

SharedUse::~SharedUse() {
  own_->process = 0;
  close(file_);
}

size_t SharedUse::of_others() const {
  size_t bytes = 0;
  for (size_t i = 0; i < kProcesses; ++i) {
    const Entry& entry = entries_[i];
    if (&entry == own_ || entry.process == 0 || entry.bytes == 0) continue;
    if (is_alive(entry.process)) bytes += entry.bytes;
  }
  return bytes;
}

bool SharedUse::take(size_t own_after, size_t total) {
  const FileLock lock(file_);
  if (own_after + of_others() > total) return false;
  own_->bytes = own_after;
  return true;
}

void SharedUse::give(size_t own_after) {
  own_->bytes = own_after;
}

}  // namespace cupool::sim
