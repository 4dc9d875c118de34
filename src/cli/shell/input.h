// SPDX-License-Identifier: Apache-2.0
// Reads files that the user names. No file can hang the command or exhaust its memory.
#pragma once

#include <cstdint>
#include <string>

namespace cupool::cli {

/// Opens a regular file for reading. Returns the descriptor, or -1 with the errno in `error`.
/// Devices, pipes and sockets give EINVAL and are not opened, since opening alone can have effects.
int open_regular_file(const std::string& path, int* error, std::uint64_t* size);

/// Reads a regular file of at most `limit` bytes. Returns false with a `reason` on failure.
bool read_regular_file(const std::string& path, std::uint64_t limit, std::string* content,
                       std::string* reason);

/// Reads the first `length` bytes of a regular file, or all of a shorter one.
bool read_start_of_file(const std::string& path, std::uint64_t length, std::string* content,
                        std::string* reason);

/// Reads a file, pipe or terminal to its end ("-": standard input), at most `limit` bytes. Gives up
/// on a pipe whose writer pauses for 30 s. Returns false with a `reason` on failure.
bool read_input(const std::string& path, std::uint64_t limit, std::string* content,
                std::string* reason);

/// The path at which another process finds what read_input() reads, or "" if there is none: of a
/// pipe, or of a file that was deleted.
std::string path_for_others(const std::string& path);

}  // namespace cupool::cli
