// SPDX-License-Identifier: Apache-2.0
// The kernel exchanges the two names atomically: the replaced file can be examined afterwards, and
// of two concurrent writers one sees the other's file.
#include "util/place_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string_view>

#include "util/standard_error.h"
#include "util/text.h"
#include "util/write_all.h"

namespace cupool::util {

namespace {

constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY;

// The latest files that this process has placed.
std::array<std::atomic<std::uint64_t>, 16> own_files{};
std::atomic<std::size_t> own_count{0};

std::uint64_t written_ns(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(status.st_mtim.tv_nsec);
}

// Includes the time: the inode of a replaced file is soon reused.
std::uint64_t key_of(const struct stat& status) {
  return (status.st_ino ^ (static_cast<std::uint64_t>(status.st_dev) << 40)) * 0x9e3779b97f4a7c15u +
         written_ns(status);
}

bool is_own(const struct stat& status) {
  for (const auto& own : own_files) {
    if (own.load(std::memory_order_relaxed) == key_of(status)) return true;
  }
  return false;
}

// Whether somebody else has written the file since.
bool is_others(const struct stat& status, std::uint64_t since_wall_ns) {
  return written_ns(status) >= since_wall_ns && !is_own(status);
}

// The folder of a path, with the slash at its end; empty: the current one.
std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1);  // npos + 1 is 0
}

// Whether everybody may make names in the folder of a path, as in /tmp; `status` is the folder's.
bool is_in_shared_folder(const std::string& path, struct stat* status) {
  const std::string folder = folder_of(path);
  return stat(folder.empty() ? "." : folder.c_str(), status) == 0 &&
         (status->st_mode & S_ISVTX) != 0 && (status->st_mode & S_IWOTH) != 0;
}

// Whether a link may be followed: in a shared folder only a link of the process's user or of the
// folder's owner. The kernel has the same rule (fs.protected_symlinks), but here it does not
// follow.
bool may_be_followed(const std::string& link) {
  struct stat folder {};
  struct stat status {};
  if (!is_in_shared_folder(link, &folder) || lstat(link.c_str(), &status) != 0) return true;
  return status.st_uid == geteuid() || status.st_uid == folder.st_uid;
}

// The target of the links at the end of a path; it need not exist yet. A link that must not be
// followed is returned itself.
std::string followed(std::string path) {
  constexpr int kMostLinks = 40;  // the kernel's own limit
  std::array<char, PATH_MAX> target;
  for (int links = 0; links < kMostLinks && descriptor_named(path) < 0; ++links) {
    const ssize_t length = readlink(path.c_str(), target.data(), target.size());
    if (length <= 0 || !may_be_followed(path)) break;
    const std::string_view name(target.data(), static_cast<std::size_t>(length));
    path = (name[0] == '/' ? std::string() : folder_of(path)).append(name);
  }
  return path;
}

bool write_and_close(int file, const std::string& content, struct stat* became = nullptr) {
  bool written = write_all(file, content.data(), content.size());
  if (written && became != nullptr) written = fstat(file, became) == 0;
  const int cause = errno;
  const bool closed = close(file) == 0;
  if (!written) errno = cause;
  return written && closed;
}

Placed write_as_it_stands(const std::string& path, const std::string& content) {
  // Non-blocking open: a FIFO without a reader must not delay the program's exit.
  const int file = open(path.c_str(), kFlags | O_TRUNC | O_NONBLOCK, 0666);
  return file >= 0 && write_and_close(file, content) ? Placed::written : Placed::failed;
}

Placed write_to_descriptor(int descriptor, const std::string& content) {
  const bool written = write_descriptor(descriptor, content.data(), content.size());
  return written ? Placed::written : Placed::failed;
}

// A new file in the folder of `path`, with an unused name: somebody who can predict the name might
// have put a link there. The name is short: that of `path` may have the maximum length.
int make_beside(const std::string& path, mode_t mode, std::string* beside) {
  constexpr int kTries = 100;
  const std::string start = folder_of(path) + "cupool." + std::to_string(getpid());
  for (int i = 0; i < kTries; ++i) {
    *beside = start + (i == 0 ? "" : "." + std::to_string(i)) + ".tmp";
    const int file = open(beside->c_str(), kFlags | O_EXCL | O_NOFOLLOW, mode);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

// Whether a file may be written although it, or its owner, cannot be replaced.
bool is_the_folders_fault(int cause) {
  return cause == EACCES || cause == EPERM || cause == EROFS || cause == EBUSY || cause == EXDEV ||
         cause == ENAMETOOLONG;
}

int rename_with(const std::string& from, const std::string& to, unsigned flags) {
  return static_cast<int>(
      syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
}

// Replaces `path` by the file `beside`, and returns whose file it replaced.
Placed put_in_place(const std::string& beside, const std::string& path,
                    std::uint64_t since_wall_ns) {
  constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE, RENAME_EXCHANGE of linux/fs.h
  constexpr unsigned kExchange = 2;
  struct stat old {};
  if (rename_with(beside, path, kNoReplace) == 0) return Placed::written;
  bool had_old = false;
  if (errno == EEXIST && rename_with(beside, path, kExchange) == 0) {
    had_old = lstat(beside.c_str(), &old) == 0;
    unlink(beside.c_str());
  } else {  // a file system without the exchange of names
    had_old = lstat(path.c_str(), &old) == 0;
    if (rename(beside.c_str(), path.c_str()) != 0) return Placed::failed;
  }
  return had_old && is_others(old, since_wall_ns) ? Placed::replaced_others : Placed::written;
}

void remember_as_own(const struct stat& file) {
  const std::size_t place = own_count.fetch_add(1, std::memory_order_relaxed) % own_files.size();
  own_files[place].store(key_of(file), std::memory_order_relaxed);
}

enum class Owner { kept, anybody };

// Gives a new file the owner and the mode of an old one, the owner first: before, its mode lets
// nobody else in.
bool take_over(int file, const struct stat& old, Owner owner) {
  struct stat made {};
  if (fstat(file, &made) != 0) return false;
  const bool has_owner = made.st_uid == old.st_uid && made.st_gid == old.st_gid;
  if (!has_owner && fchown(file, old.st_uid, old.st_gid) != 0 && owner == Owner::kept) {
    errno = EPERM;
    return false;
  }
  fchmod(file, old.st_mode & 0777);
  return true;
}

Placed write_beside(const std::string& path, const struct stat* old, Owner owner,
                    const std::string& content, std::uint64_t since_wall_ns) {
  std::string beside;
  const int file = make_beside(path, old == nullptr ? 0666 : 0600, &beside);
  if (file < 0) return Placed::failed;
  struct stat made {};
  Placed placed = Placed::failed;
  if (old != nullptr && !take_over(file, *old, owner)) {
    const int cause = errno;
    close(file);
    errno = cause;
  } else if (write_and_close(file, content, &made)) {
    placed = put_in_place(beside, path, since_wall_ns);
  }
  if (placed == Placed::failed) {
    const int cause = errno;
    unlink(beside.c_str());
    errno = cause;
  } else {
    remember_as_own(made);
  }
  return placed;
}

// Whether a file may become `size` bytes long, and has the room for it from now on. A file system
// that cannot say so (NFS before 4.2, some in user space), or writes everything to new places, may
// still find itself full later.
bool reserve(int file, const struct stat& old, std::size_t size) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && size > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  if (size == 0) return true;
  int result = 0;
  do {
    result = fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return true;
  const int cause = errno;
  if (ftruncate(file, old.st_size) != 0) return false;  // gives back what was had of it
  errno = cause;
  return false;
}

// The bytes of a file become others while it stays: its owner and all of its names. Cut at the end,
// so that the room of the old ones is there for the new ones.
Placed write_over(const std::string& path, const std::string& content,
                  std::uint64_t since_wall_ns) {
  const int file = open(path.c_str(), kFlags | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (file < 0) return Placed::failed;
  struct stat old {};
  struct stat made {};
  const bool written = fstat(file, &old) == 0 && reserve(file, old, content.size()) &&
                       write_all(file, content.data(), content.size()) &&
                       ftruncate(file, static_cast<off_t>(content.size())) == 0 &&
                       fstat(file, &made) == 0;
  const int cause = errno;
  const bool closed = close(file) == 0;
  if (!written) errno = cause;
  if (!written || !closed) return Placed::failed;
  // One that is empty may have been made just now, by the open.
  const bool others = old.st_size != 0 && is_others(old, since_wall_ns);
  remember_as_own(made);
  return others ? Placed::replaced_others : Placed::written;
}

Placed replace(const std::string& path, const struct stat& old, const std::string& content,
               std::uint64_t since_wall_ns) {
  // Other names would go on showing the old content. In a shared folder the other name may be the
  // right one, and this one a stranger's.
  struct stat folder {};
  if (old.st_nlink == 1 || is_in_shared_folder(path, &folder)) {
    const Placed placed = write_beside(path, &old, Owner::kept, content, since_wall_ns);
    if (placed != Placed::failed || !is_the_folders_fault(errno)) return placed;
  }
  const Placed placed = write_over(path, content, since_wall_ns);
  if (placed != Placed::failed || (errno != EACCES && errno != EPERM)) return placed;
  // The file may not be written to. Who may have another in its place rather has that.
  return write_beside(path, &old, Owner::anybody, content, since_wall_ns);
}

}  // namespace

Placed place_file(const std::string& path, const std::string& content,
                  std::uint64_t since_wall_ns) {
  const std::string target = followed(path);
  const int descriptor = descriptor_named(target);
  if (descriptor >= 0) return write_to_descriptor(descriptor, content);
  struct stat old {};
  if (lstat(target.c_str(), &old) != 0) {
    const Placed placed = write_beside(target, nullptr, Owner::anybody, content, since_wall_ns);
    if (placed != Placed::failed || errno != ENAMETOOLONG) return placed;
    return write_over(target, content, since_wall_ns);  // no room in a path for another name
  }
  if (S_ISLNK(old.st_mode)) {  // one that may not be followed
    errno = EACCES;
    return Placed::failed;
  }
  if (!S_ISREG(old.st_mode)) return write_as_it_stands(target, content);
  return replace(target, old, content, since_wall_ns);
}

}  // namespace cupool::util
