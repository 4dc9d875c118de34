// SPDX-License-Identifier: Apache-2.0
// Expansion of the % letters in file names, with the rank of the launcher that started the process.
#include "util/path_pattern.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace cupool::util {

namespace {

// Environment and host name become part of a file's name: they must not choose its directory.
std::string as_file_name(std::string text) {
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

// The value of an environment variable; empty if it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string compact_local_time(std::uint64_t wall_ns) {
  const auto seconds = static_cast<time_t>(wall_ns / 1'000'000'000u);
  struct tm parts {};
  ::localtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, ::strftime(text, sizeof text, "%Y%m%dT%H%M%S", &parts));
}

}  // namespace

std::string launcher_rank() {
  // The nearest launcher counts. torchrun runs between a batch system and the program: in a Slurm
  // job or under mpirun all of its workers inherit the same outer rank.
  if (!variable("TORCHELASTIC_RUN_ID").empty() || !variable("LOCAL_RANK").empty()) {
    std::string rank = variable("RANK");
    if (!rank.empty()) return rank;
  }
  // Open MPI; PMIx launchers (PRRTE, Flux); MPICH's Hydra and its family (Intel MPI); Cray PALS;
  // MVAPICH; Slurm, after the launchers that run inside its jobs; any other that sets RANK.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID",
                           "MV2_COMM_WORLD_RANK", "SLURM_PROCID", "RANK"}) {
    std::string rank = variable(name);
    if (!rank.empty()) return rank;
  }
  return {};
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string absolute_pattern(std::string_view pattern) {
  char folder[4096];
  std::string absolute;
  if (!pattern.empty() && pattern[0] != '/' && ::getcwd(folder, sizeof folder) != nullptr) {
    for (const char* letter = folder; *letter != '\0'; ++letter) {
      absolute.append(*letter == '%' ? 2 : 1, *letter);  // no pattern in the folder's name
    }
    absolute += '/';
  }
  return absolute.append(pattern);
}

std::string expand_path_pattern(std::string_view pattern, std::uint64_t wall_ns) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    const char letter = pattern[++i];
    switch (letter) {
      case 'p':
        path += std::to_string(::getpid());
        break;
      case 'h':
        path += as_file_name(host_name());
        break;
      case 'r': {
        const std::string rank = launcher_rank();
        path += rank.empty() ? "0" : as_file_name(rank);
        break;
      }
      case 't':
        path += compact_local_time(wall_ns);
        break;
      case '%':
        path += '%';
        break;
      default:
        path += '%';
        path += letter;
    }
  }
  return path;
}

}  // namespace cupool::util
