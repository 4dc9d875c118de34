// SPDX-License-Identifier: Apache-2.0
// Several copies of this library in one process (preloaded by two paths, or part of two packages):
// one of them serves.
#pragma once

namespace cupool::process {

/// Whether the program's symbols bind to this copy first. The other copies step aside and forward
/// every call. Thread-safe.
bool is_first_copy() noexcept;

/// Warns if another copy follows this one.
void warn_of_other_copy() noexcept;

}  // namespace cupool::process
