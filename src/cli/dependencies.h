// Which libraries the dynamic loader would map for a program: asked of the loader itself, since
// only it knows its search paths and caches. Nothing of the program runs.
#pragma once

#include <string>
#include <vector>

#include "cli/child.h"

namespace cupool::cli {

struct Dependency {
  std::string name;  ///< as needed: libcudart.so.13
  std::string path;  ///< "" if it was not found
};

/// What `program` would be loaded with. Those that cannot be found have no path.
std::vector<Dependency> list_dependencies(const std::string& loader, const std::string& program,
                                          const Environment& environment);

/// Whether loading would succeed under `environment` (whose LD_PRELOAD counts), with what, and what
/// the loader says of it.
struct TriedLoad {
  bool tried = false;  ///< the loader could be started
  std::vector<Dependency> libraries;
  std::string messages;
};
TriedLoad try_load(const std::string& loader, const std::string& program,
                   const Environment& environment);

/// The lines of such a list; for tests. Pure.
std::vector<Dependency> parse_dependencies(const std::string& output);

/// Whether this is a loader that can be asked: glibc's.
bool is_glibc_loader(const std::string& loader);

}  // namespace cupool::cli
