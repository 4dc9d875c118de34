// SPDX-License-Identifier: Apache-2.0
// Standard error, and other descriptors named by an option, as the user meant them. If the program
// closes one, its next file gets the number, and a report would corrupt that file.
#pragma once

#include <cstddef>
#include <string_view>

#include "util/write_all.h"

namespace cupool::util {

/// The descriptor that a name means (/dev/stdout and the like, /dev/fd/3), or -1. Uses no heap.
int descriptor_named(std::string_view path) noexcept;

/// Records the file behind descriptor 2: the one from the start of the process, or the program's
/// deliberate replacement. Before the first call any file at 2 counts as standard error.
/// `from_start`: a close-on-exec descriptor was opened later and does not count. Async-signal-safe.
void note_standard_error(bool from_start) noexcept;

/// The same for a descriptor named by an option: recorded once from the start, then only for the
/// program's replacements. The table is small; descriptors beyond it are never written to.
/// Async-signal-safe.
void note_descriptor(int descriptor) noexcept;

/// To be called after a deliberate replacement of `descriptor` by the program.
void note_redirection(int descriptor) noexcept;

/// Writes all to standard error as write_all() does, or nothing if 2 is another file by now. Uses
/// no lock and no heap. Thread-safe.
bool write_standard_error(const char* data, std::size_t size) noexcept;

/// The same for any descriptor; an unrecorded one is recorded now.
bool write_descriptor(int descriptor, const char* data, std::size_t size,
                      std::size_t* taken = nullptr, int patience_ms = kWritePatienceMs) noexcept;

}  // namespace cupool::util
