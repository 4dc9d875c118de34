// SPDX-License-Identifier: Apache-2.0
// A file without a name. By system call: glibc has memfd_create since 2.27, and the tests also run
// on older systems.
#pragma once

#include <linux/memfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cupool::sim {

/// Its descriptor, closed at exec; -1 with errno if the system refuses.
inline int memory_file(const char* name) {
  return static_cast<int>(syscall(SYS_memfd_create, name, MFD_CLOEXEC));
}

}  // namespace cupool::sim
