// SPDX-License-Identifier: Apache-2.0
// File names that differ by process: %p, %h, %r, %t. Many ranks start with the same environment,
// and would otherwise overwrite each other's files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cupool::util {

/// Expands %p (process id), %h (host name), %r (rank, "0" if there is no launcher), %t (`wall_ns`,
/// since 1970, as local time YYYYmmddTHHMMSS) and %% (a percent sign). Any other %x is unchanged. A
/// slash in a host or rank becomes '_'. Reads the environment, which the program may change
/// concurrently: as thread-safe as getenv. Throws only std::bad_alloc.
std::string expand_path_pattern(std::string_view pattern, std::uint64_t wall_ns);

/// The pattern, made absolute with the current working directory. An empty one is unchanged, and
/// any pattern if the directory is unknown. Throws only std::bad_alloc.
std::string absolute_pattern(std::string_view pattern);

/// The launcher's rank: RANK beside LOCAL_RANK or TORCHELASTIC_RUN_ID (torchrun), else the first of
/// OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, PALS_RANKID, MV2_COMM_WORLD_RANK, SLURM_PROCID, RANK
/// that is set and not empty; empty if there is none.
std::string launcher_rank();

/// This machine's name, or "localhost" if it has none.
std::string host_name();

}  // namespace cupool::util
