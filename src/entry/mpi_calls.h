// SPDX-License-Identifier: Apache-2.0
// The functions of MPI, exported in front of the real ones (mpi_calls.def): each waits for what
// frees have left to it (engine/serve/messages), and goes on to the function that the program would
// have called. What cupool does not export, it has no part in.
#pragma once

#include <cstdint>
#include <optional>

namespace cupool::entry {

/// Called by the guard of the function with this number, before each call. Returns the real
/// function; null, as without cupool, if there is none.
void* mpi_called(std::uint64_t index);

/// What a look-up of `symbol` by the code at `caller` finds: a guard, as the program's references
/// do, if it stands before the function that the look-up would have found. Empty: the real look-up
/// answers, since this is none of the table's functions, or there is none.
std::optional<void*> look_up_mpi(void* handle, const char* symbol, const void* caller);

}  // namespace cupool::entry
