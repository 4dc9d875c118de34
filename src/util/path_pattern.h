// Names of output files that differ by process: %p, %h, %r, %t.
// Many ranks start with one environment; without this they would overwrite one another's files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cupool::util {

/// Expands %p (process id), %h (host name), %r (rank, "0" if there is no launcher), %t (`wall_ns`,
/// since 1970, as local time YYYYmmddTHHMMSS) and %% (a percent sign). Any other %x stays as it is.
/// A slash in a host or rank becomes '_'. Reads the environment, which the program may change
/// meanwhile: thread-safe as far as getenv is. Throws only std::bad_alloc.
std::string expand_path_pattern(std::string_view pattern, std::uint64_t wall_ns);

/// The rank that the launcher gave: RANK beside LOCAL_RANK or TORCHELASTIC_RUN_ID (torchrun), else
/// the first of OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, PALS_RANKID, MV2_COMM_WORLD_RANK,
/// SLURM_PROCID, RANK that is set and not empty; an empty text if there is none.
std::string launcher_rank();

/// This machine's name, or "localhost" if it has none.
std::string host_name();

}  // namespace cupool::util
