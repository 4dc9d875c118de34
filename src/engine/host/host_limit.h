// SPDX-License-Identifier: Apache-2.0
// How much page-locked memory may lie idle: it is taken from everyone on the machine.
#pragma once

#include <cstdint>
#include <string>

#include "config/types.h"

namespace cupool::engine {

/// Memory that this process may use at most: the machine's, or the limit of its control group (v1
/// and v2), whichever is smaller. `root` is the root of the file system, for tests.
std::uint64_t memory_of_process(const std::string& root = "");

/// CUPOOL_HOST_MAX_CACHED in bytes, for a process that may use `memory` bytes. auto: a 16th of
/// them, 4 GiB at most.
std::uint64_t most_cached_host_bytes(const config::LimitOption& option, std::uint64_t memory);

}  // namespace cupool::engine
