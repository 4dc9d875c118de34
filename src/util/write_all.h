// One way to write a whole buffer to a descriptor that belongs to the program.
// Standard error may be a closed pipe, a full non-blocking terminal, or nothing; a disk may be full
// or files limited: none of that may end the program or change how it ends.
#pragma once

#include <cstddef>

namespace cupool::util {

/// Writes all bytes, in one write(2) where the kernel takes them at once. A closed pipe raises no
/// SIGPIPE, a file at its limit (RLIMIT_FSIZE) no SIGXFSZ. A descriptor that takes nothing for two
/// seconds is given up. True if all was written; else errno says why. `taken`, if it is not null,
/// gets how many bytes were written. Thread-safe. Never throws.
bool write_all(int fd, const char* data, std::size_t size, std::size_t* taken = nullptr) noexcept;

}  // namespace cupool::util
