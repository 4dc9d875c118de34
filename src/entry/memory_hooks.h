// SPDX-License-Identifier: Apache-2.0
// Who hooks the driver's memory functions as well: UCX, to know which memory is the GPU's and when
// a registration of it ends.
//
// UCX looks a function up and writes a jump to its own into the code that it finds. It has to find
// the driver's code. Then it sees what the driver does: memory that cupool caches stays known and
// registered, and memory that cupool gives back does not. If it found cupool's functions, it would
// see the program's calls, but not what becomes of the memory; and since it would then be the
// caller, it would be given no pool memory (CUPOOL_BYPASS_LIBS).
//
// UCX can also replace the program's references, and calls what it found: then that has to be
// cupool's, which is the only one that knows the program's blocks. Which of the two it does shows
// in the code of the first function. It asks for cuMemAlloc_v2 before any function that frees.
#pragma once

#include "engine/serve/pointer_queries.h"

namespace cupool::entry {

/// Whether a look-up of `symbol` by the code at `caller` has to find the driver's own function,
/// `real`, and not cupool's. Thread-safe.
bool has_to_find_the_drivers(const char* symbol, void* real, const void* caller);

/// Until when the code at `caller` knows memory that it exports, or gives SYNC_MEMOPS. A transport
/// of UCX until the driver frees it: so long last its registrations, its peers tell mappings by
/// BUFFER_ID, and of memory that it only asks about it closes the descriptor at once. Thread-safe.
engine::PointerQueries::KnownUntil known_until(const void* caller);

}  // namespace cupool::entry
