// SPDX-License-Identifier: Apache-2.0
// Consequences of a driver error for the engine.
#pragma once

#include "engine/context/context.h"

namespace cupool::engine {

/// Notes a driver error in `context`. After a sticky error (I7) all calls in the context pass
/// through; after the driver's shutdown all calls of the process do. Thread-safe.
void note_failure(Context& context, CUresult result);
/// The same for a call outside a visit, which the end of the context may have interrupted: a sticky
/// error that was met in `life` says nothing about the next one.
void note_failure(Context& context, std::uint64_t life, CUresult result);

}  // namespace cupool::engine
