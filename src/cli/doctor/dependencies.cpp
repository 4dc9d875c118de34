// SPDX-License-Identifier: Apache-2.0
// The search of ld.so(8), breadth first. Ignores glibc-hwcaps folders, which hold only variants of
// libraries, and DF_1_NODEFLIB.
#include "cli/doctor/dependencies.h"

#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <deque>
#include <set>

#include "cli/shell/input.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr std::size_t kMostLibraries = 1024;
constexpr std::size_t kMostTries = 50000;  // paths tried, for all libraries
constexpr const char* kCacheFile = "/etc/ld.so.cache";
constexpr std::uint64_t kMostCacheBytes = std::uint64_t{64} << 20;

// glibc's loaders, as compilers write them into programs.
const char* const kSystemLoaders[] = {
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-x86-64.so.2",
    "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "/usr/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib64/ld-linux-aarch64.so.1",
    "/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1",
    "/lib64/ld64.so.2",
};

const char* const kSystemFolders[] = {"/lib/" CUPOOL_MULTIARCH,
                                      "/usr/lib/" CUPOOL_MULTIARCH,
                                      "/lib64",
                                      "/usr/lib64",
                                      "/lib",
                                      "/usr/lib"};

struct Object {
  std::string folder;  // $ORIGIN
  std::vector<std::string> needed;
  std::vector<std::string> rpath;
  std::vector<std::string> runpath;
  std::size_t parent = 0;  // index of the object that needed it; 0 for the program
};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Stops at PATH_MAX: a hostile file may repeat a token.
void replace_all(std::string* text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0;
       text->size() < PATH_MAX && (at = text->find(what, at)) != std::string::npos;
       at += by.size()) {
    text->replace(at, what.size(), by);
  }
}

void replace_token(std::string* text, const std::string& name, const std::string& by) {
  replace_all(text, "${" + name + "}", by);
  replace_all(text, "$" + name, by);
}

// The folders of a search path, tokens replaced. An empty entry is the current folder.
std::vector<std::string> folders_of(const std::string& paths, const std::string& origin) {
  std::vector<std::string> folders;
  if (paths.empty()) return folders;
  const auto* const platform = reinterpret_cast<const char*>(getauxval(AT_PLATFORM));
  for (std::size_t begin = 0; begin <= paths.size();) {
    const std::size_t end = std::min(paths.find_first_of(":;", begin), paths.size());
    std::string folder = end == begin ? "." : paths.substr(begin, end - begin);
    begin = end + 1;
    replace_token(&folder, "ORIGIN", origin);
    replace_token(&folder, "PLATFORM", platform == nullptr ? "" : platform);
    // $LIB is a constant of the loader, so all its usual values are tried.
    for (const char* lib : {"lib64", "lib/" CUPOOL_MULTIARCH, "lib"}) {
      std::string variant = folder;
      replace_token(&variant, "LIB", lib);
      if (variant.size() < PATH_MAX) folders.push_back(variant);
      if (variant == folder) break;
    }
  }
  return folders;
}

class Search {
 public:
  Search(const std::string& program, const ElfFile& elf, const Environment& environment)
      : machine_(elf.machine) {
    const char* const paths = environment.get("LD_LIBRARY_PATH");
    add(program, elf, 0);
    library_path_ = folders_of(paths == nullptr ? "" : paths, objects_[0].folder);
    std::string cache;
    std::string reason;
    if (read_regular_file(kCacheFile, kMostCacheBytes, &cache, &reason)) {
      cache_ = parse_loader_cache(cache);
    }
  }

  std::vector<Dependency> run() {
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      for (const std::string& name : objects_[i].needed) {
        if (found_.size() >= kMostLibraries) return std::move(found_);
        if (!known_.insert(name).second) continue;
        find(name, i);
      }
    }
    return std::move(found_);
  }

 private:
  void add(const std::string& path, const ElfFile& elf, std::size_t parent) {
    const std::string folder = folder_of(path);
    objects_.push_back({folder, elf.needed, folders_of(elf.rpath, folder),
                        folders_of(elf.runpath, folder), parent});
    if (!elf.soname.empty()) known_.insert(elf.soname);
  }

  // Adds the file if it is a library that the program's loader would accept.
  bool take(const std::string& name, const std::string& path, std::size_t parent) {
    if (++tries_ > kMostTries) return false;
    ElfFile elf;
    std::string reason;
    if (read_elf_dynamic(path, &elf, &reason) != ElfStatus::read || elf.bits != 64 ||
        elf.machine != machine_) {
      return false;
    }
    found_.push_back({util::base_name(name), path});
    add(path, elf, parent);
    return true;
  }

  bool take_from(const std::vector<std::string>& folders, const std::string& name,
                 std::size_t parent) {
    return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
      return take(name, folder + "/" + name, parent);
    });
  }

  // Searches the RPATH of the object and of its ancestors; a RUNPATH overrides an RPATH.
  bool take_by_rpath(const std::string& name, std::size_t object) {
    if (!objects_[object].runpath.empty()) return false;
    for (std::size_t at = object;; at = objects_[at].parent) {
      const Object& holder = objects_[at];
      if (holder.runpath.empty() && take_from(holder.rpath, name, object)) return true;
      if (at == 0) return false;
    }
  }

  bool take_by_cache(const std::string& name, std::size_t object) {
    return std::any_of(cache_.begin(), cache_.end(), [&](const Dependency& entry) {
      return entry.name == name && take(name, entry.path, object);
    });
  }

  void find(const std::string& name, std::size_t object) {
    const Object& needs = objects_[object];
    if (name.find('/') != std::string::npos) {
      std::string path = name;
      replace_token(&path, "ORIGIN", needs.folder);
      if (take(name, path, object)) return;
    } else {
      if (take_by_rpath(name, object)) return;
      if (take_from(library_path_, name, object)) return;
      if (take_from(needs.runpath, name, object)) return;
      if (take_by_cache(name, object)) return;
      for (const char* folder : kSystemFolders) {
        if (take(name, std::string(folder) + "/" + name, object)) return;
      }
    }
    // After the last try, a library that was not searched must not count as missing.
    if (tries_ <= kMostTries) found_.push_back({util::base_name(name), ""});
  }

  std::uint16_t machine_;
  std::vector<std::string> library_path_;
  std::vector<Dependency> cache_;
  std::deque<Object> objects_;   // references stay valid while it grows
  std::set<std::string> known_;  // names of DT_NEEDED and DT_SONAME
  std::vector<Dependency> found_;
  std::size_t tries_ = 0;
};

bool only_root_writes(const struct stat& status) {
  return status.st_uid == 0 && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

std::vector<Dependency> find_dependencies(const std::string& program, const ElfFile& elf,
                                          const Environment& environment) {
  return Search(program, elf, environment).run();
}

bool is_glibc_loader(const std::string& loader) {
  const std::string name = util::base_name(loader);
  return name.compare(0, 8, "ld-linux") == 0 || name.compare(0, 4, "ld64") == 0;
}

bool is_system_loader(const std::string& loader) {
  const bool listed = std::any_of(std::begin(kSystemLoaders), std::end(kSystemLoaders),
                                  [&loader](const char* path) { return loader == path; });
  return listed && only_root_can_change(loader);
}

bool only_root_can_change(const std::string& path) {
  char real[PATH_MAX];
  struct stat status {};
  if (realpath(path.c_str(), real) == nullptr || lstat(real, &status) != 0 ||
      !S_ISREG(status.st_mode) || !only_root_writes(status)) {
    return false;
  }
  for (std::string folder = folder_of(real);; folder = folder_of(folder)) {
    if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
        !only_root_writes(status)) {
      return false;
    }
    if (folder == "/") return true;
  }
}

TriedLoad try_load(const std::string& loader, const std::string& library,
                   const Environment& environment) {
  ChildStart start;
  start.argv = {loader, "--list", library};
  start.environment = environment;
  // These would load more than the library, or process its relocations.
  for (const char* name : {"LD_PRELOAD", "LD_AUDIT", "LD_WARN", "LD_BIND_NOW", "LD_DEBUG"}) {
    start.environment.unset(name);
  }
  const CapturedEnd end = run_captured(start);
  TriedLoad load;
  load.tried = end.end.start_code == 0 && end.end.signal == 0;
  load.works = load.tried && end.end.exit_code == 0;
  load.messages = std::string(util::trim(end.standard_error));
  return load;
}

}  // namespace cupool::cli
