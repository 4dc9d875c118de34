// SPDX-License-Identifier: Apache-2.0
// What a launcher or a batch system says of this process in its environment (util/launchers.def).
// Reads the environment, which the program may change concurrently: as thread-safe as getenv.
// Throws only std::bad_alloc.
#pragma once

#include <string>

namespace cupool::util {

/// This process's rank; empty without a launcher.
std::string launcher_rank();

/// The number of ranks, of the launcher that gave the rank; empty if unknown.
std::string launcher_ranks();

/// The job's id; empty outside a job.
std::string launcher_job();

/// This machine's name, or "localhost" if it has none.
std::string host_name();

/// The batch system's name of this node, else the host name up to its first dot.
std::string node_name();

}  // namespace cupool::util
