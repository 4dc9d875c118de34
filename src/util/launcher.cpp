// SPDX-License-Identifier: Apache-2.0
// Look-ups in the tables of launchers.def.
#include "util/launcher.h"

#include <unistd.h>

#include <cstdlib>

namespace cupool::util {

namespace {

struct Launcher {
  const char* rank;
  const char* ranks;
  const char* beside;
};
constexpr Launcher kLaunchers[] = {
#define CUPOOL_LAUNCHER(rank, ranks, beside, launcher) {rank, ranks, beside},
#include "util/launchers.def"
};
constexpr const char* kJobs[] = {
#define CUPOOL_JOB(variable, system) variable,
#include "util/launchers.def"
};
constexpr const char* kNodes[] = {
#define CUPOOL_NODE(variable, system) variable,
#include "util/launchers.def"
};

// The value of an environment variable; empty if it is not set.
std::string variable(const char* name) {
  const char* value = *name == '\0' ? nullptr : std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

const Launcher* nearest_launcher() {
  for (const Launcher& launcher : kLaunchers) {
    if (*launcher.beside != '\0' && variable(launcher.beside).empty()) continue;
    if (!variable(launcher.rank).empty()) return &launcher;
  }
  return nullptr;
}

template <std::size_t count>
std::string first_of(const char* const (&names)[count]) {
  for (const char* name : names) {
    std::string value = variable(name);
    if (!value.empty()) return value;
  }
  return {};
}

}  // namespace

std::string launcher_rank() {
  const Launcher* launcher = nearest_launcher();
  return launcher == nullptr ? std::string() : variable(launcher->rank);
}

std::string launcher_ranks() {
  const Launcher* launcher = nearest_launcher();
  return launcher == nullptr ? std::string() : variable(launcher->ranks);
}

std::string launcher_job() {
  return first_of(kJobs);
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string node_name() {
  const std::string given = first_of(kNodes);
  if (!given.empty()) return given;
  const std::string host = host_name();
  return host.substr(0, host.find('.', 1));
}

}  // namespace cupool::util
