// SPDX-License-Identifier: Apache-2.0
// Opens without blocking: a FIFO without a writer must not stop the command.
#include "cli/shell/input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr int kIdleSeconds = 30;

std::string input_path(const std::string& path) {
  return path == "-" ? "/dev/stdin" : path;
}

struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

int open_without_blocking(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

// Standard input may be a socket, which cannot be opened again, or a file of another user.
int open_input(const std::string& path) {
  return path == "-" ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open_without_blocking(path);
}

bool too_large(std::uint64_t limit, std::string* reason) {
  *reason = "larger than " + util::format_bytes(limit);
  return false;
}

// Waits for input or for the end of the stream.
bool wait_for_input(int descriptor, std::string* reason) {
  pollfd polled{descriptor, POLLIN, 0};
  const int limit_ms = isatty(descriptor) == 1 ? -1 : kIdleSeconds * 1000;
  const int ready = poll(&polled, 1, limit_ms);
  if (ready > 0 || (ready < 0 && errno == EINTR)) return true;
  *reason = ready == 0 ? "its writer sent nothing for " + std::to_string(kIdleSeconds) + " s"
                       : std::strerror(errno);
  return false;
}

// Reads to the end; more than `limit` bytes are an error. A descriptor that was inherited may
// block.
bool read_all(int descriptor, std::uint64_t limit, std::string* content, std::string* reason) {
  char buffer[65536];
  const bool blocks = (fcntl(descriptor, F_GETFL) & O_NONBLOCK) == 0;
  for (;;) {
    if (blocks && !wait_for_input(descriptor, reason)) return false;
    const std::uint64_t left = limit + 1 - content->size();
    const ssize_t got = read(descriptor, buffer, std::min<std::uint64_t>(sizeof buffer, left));
    if (got > 0) content->append(buffer, static_cast<std::size_t>(got));
    if (content->size() > limit) return too_large(limit, reason);
    if (got == 0) return true;
    if (got > 0 || errno == EINTR) continue;
    if (errno != EAGAIN) {
      *reason = std::strerror(errno);
      return false;
    }
    if (!wait_for_input(descriptor, reason)) return false;
  }
}

}  // namespace

int open_regular_file(const std::string& path, int* error, std::uint64_t* size) {
  struct stat status {};
  *error = stat(path.c_str(), &status) != 0 ? errno : 0;
  // Opening some devices has effects, so the type is checked first.
  if (*error == 0 && !S_ISREG(status.st_mode)) *error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  if (*error != 0) return -1;
  const int descriptor = open_without_blocking(path);
  if (descriptor < 0 || fstat(descriptor, &status) != 0) {
    *error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    *error = EINVAL;
  }
  *size = static_cast<std::uint64_t>(status.st_size);
  if (*error == 0) return descriptor;
  if (descriptor >= 0) close(descriptor);
  return -1;
}

static int open_regular_file_or_say_why(const std::string& path, std::uint64_t* size,
                                        std::string* reason) {
  int error = 0;
  const int descriptor = open_regular_file(path, &error, size);
  if (descriptor < 0) *reason = error == EINVAL ? "not a regular file" : std::strerror(error);
  return descriptor;
}

bool read_regular_file(const std::string& path, std::uint64_t limit, std::string* content,
                       std::string* reason) {
  std::uint64_t size = 0;
  const Descriptor file{open_regular_file_or_say_why(path, &size, reason)};
  if (file.number < 0) return false;
  if (size > limit) return too_large(limit, reason);
  return read_all(file.number, limit, content, reason);
}

bool read_start_of_file(const std::string& path, std::uint64_t length, std::string* content,
                        std::string* reason) {
  std::uint64_t size = 0;
  const Descriptor file{open_regular_file_or_say_why(path, &size, reason)};
  if (file.number < 0) return false;
  // A longer file is no error here.
  if (!read_all(file.number, length, content, reason) && content->size() <= length) return false;
  content->resize(std::min<std::uint64_t>(content->size(), length));
  return true;
}

bool read_input(const std::string& path, std::uint64_t limit, std::string* content,
                std::string* reason) {
  const Descriptor file{open_input(path)};
  struct stat status {};
  if (file.number < 0 || fstat(file.number, &status) != 0) {
    *reason = std::strerror(errno);
    return false;
  }
  if (S_ISREG(status.st_mode) && static_cast<std::uint64_t>(status.st_size) > limit) {
    return too_large(limit, reason);
  }
  const bool device = S_ISBLK(status.st_mode) || (S_ISCHR(status.st_mode) && !isatty(file.number));
  if (device || S_ISDIR(status.st_mode)) {
    *reason = device ? "a device" : "a folder";
    return false;
  }
  // Without a writer, a read would report the end of the file at once.
  if (S_ISFIFO(status.st_mode) && !wait_for_input(file.number, reason)) return false;
  return read_all(file.number, limit, content, reason);
}

std::string path_for_others(const std::string& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(input_path(path), error);
  return !error && std::filesystem::is_regular_file(file, error) ? file.string() : "";
}

}  // namespace cupool::cli
