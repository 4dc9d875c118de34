// SPDX-License-Identifier: Apache-2.0
// Look-ups as if cupool were not there.
#pragma once

namespace cupool::entry {

/// A handle of the object that contains the code at `address`, to search it and its dependencies;
/// null for the program itself, whose scope begins with cupool. Closed already: the caller keeps
/// its own object loaded. Thread-safe.
void* handle_of(const void* address);

/// The next definition of `name` behind this library, in the global scope or else in that of the
/// code at `caller`; null: none. Thread-safe.
void* look_up_behind_us(const void* caller, const char* name);

/// Whether an object that stands before this library in the program's search order, as the program
/// itself does, defines `name`: that is what the program means by it. Thread-safe.
bool is_defined_before_us(const char* name);

}  // namespace cupool::entry
