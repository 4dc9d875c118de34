// SPDX-License-Identifier: Apache-2.0
// The functions of MPI, exported in front of the real ones (mpi_calls.def): each waits for what
// frees have left to it (engine/serve/messages), and goes on to the function that its caller would
// have called.
#pragma once

#include <cstdint>
#include <optional>

namespace cupool::entry {

/// Called by the guard of the function with this number, before each call from `caller`. Returns
/// the real function. Where there is none (a weak reference, in a process without MPI), one that
/// answers with an error.
void* mpi_called(std::uint64_t index, const void* caller);

/// What a look-up of `symbol` by the code at `caller` finds: a guard, as the program's references
/// do, if it stands before the function that the look-up would have found. A null pointer: the
/// look-up must fail. Empty: the real look-up answers. Calls of a function that is found without a
/// guard are not seen, so that frees wait from now on.
std::optional<void*> look_up_mpi(void* handle, const char* symbol, const void* caller);

/// Code has left the process: what was found there is forgotten. Thread-safe.
void forget_mpi_functions();

}  // namespace cupool::entry
