// SPDX-License-Identifier: Apache-2.0
// Free mode and backend for the report: as requested, in force, and why they differ.
#pragma once

#include "engine/serve/allocator.h"
#include "stats/snapshot.h"

namespace cupool::process {

/// Looks for an RDMA library where the engine does not: without an engine, and with settings that
/// leave nothing to decide. To be called at the start and at the exit of the process.
void note_rdma_library(bool is_serving);

/// The backend of new memory, as the report has it; `allocator` is null in an observed run.
const char* backend_in_force(engine::Allocator* allocator);

/// Fills the modes of `info` from the settings and the engine; `allocator` is null in an observed
/// run. Returns false if nothing has changed since the last call. Throws only std::bad_alloc.
bool describe_modes(engine::Allocator* allocator, stats::ProcessInfo* info);

}  // namespace cupool::process
