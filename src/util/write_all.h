// SPDX-License-Identifier: Apache-2.0
// Writes a whole buffer to a descriptor of the program. Standard error may be a closed pipe, a full
// non-blocking terminal, or closed; a disk may be full or file sizes limited. None of that may end
// the program or change how it ends.
#pragma once

#include <cstddef>

namespace cupool::util {

/// The default wait for a descriptor that accepts nothing.
inline constexpr int kWritePatienceMs = 2000;

/// Writes all bytes, in one write(2) if the kernel accepts them at once. A closed pipe raises no
/// SIGPIPE, a file at its limit (RLIMIT_FSIZE) no SIGXFSZ. Gives up on a descriptor that accepts
/// nothing for `patience_ms` (EAGAIN). True if all was written; else see errno. `taken`, if not
/// null, receives the number of bytes written. Thread-safe. Never throws.
bool write_all(int fd, const char* data, std::size_t size, std::size_t* taken = nullptr,
               int patience_ms = kWritePatienceMs) noexcept;

}  // namespace cupool::util
