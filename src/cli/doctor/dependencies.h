// SPDX-License-Identifier: Apache-2.0
// The libraries that the dynamic loader would map for a program, computed from the files alone.
// Running a loader on an untrusted file would run code of its choice (interpreter, DT_AUDIT).
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/elf_file.h"
#include "cli/shell/child.h"

namespace cupool::cli {

struct Dependency {
  std::string name;  ///< as in DT_NEEDED: libcudart.so.13
  std::string path;  ///< "" if not found
};

/// The libraries of `program`, whose headers are in `elf`, under `environment`, by the rules of
/// ld.so(8): RPATH, LD_LIBRARY_PATH, RUNPATH, the loader's cache, the system's folders. Reads
/// regular files and runs nothing. Returns at most 1,024 libraries, which bounds the cost of
/// hostile files.
std::vector<Dependency> find_dependencies(const std::string& program, const ElfFile& elf,
                                          const Environment& environment);

/// The libraries of an ld.so.cache, in its order; empty for any other content. Pure.
std::vector<Dependency> parse_loader_cache(const std::string& bytes);

/// Whether `loader` has the name of a glibc loader. Does not check the file.
bool is_glibc_loader(const std::string& loader);

/// Whether `loader` is this system's own: one of glibc's fixed paths, in folders that only root can
/// change.
bool is_system_loader(const std::string& loader);

/// Whether only root can change the file. After resolving symbolic links, it must be a regular
/// file; root alone owns and can write the file and all folders above it.
bool only_root_can_change(const std::string& path);

/// Asks `loader` to load `library`. Runs the loader, so call it only for the system's own loader
/// and cupool's library, never for an inspected file.
struct TriedLoad {
  bool tried = false;  ///< the loader could be started
  bool works = false;
  std::string messages;
};
TriedLoad try_load(const std::string& loader, const std::string& library,
                   const Environment& environment);

}  // namespace cupool::cli
