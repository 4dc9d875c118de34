// SPDX-License-Identifier: Apache-2.0
// All paths derive from /proc/self/exe, so a moved or copied folder still works.
#include "cli/shell/library.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "cli/shell/exit_code.h"
#include "cli/shell/suggestion.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLibraryName = "libcupool.so";

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? fs::absolute(path).string() : real.string();
}

bool is_sanitizer_runtime(const std::string& path) {
  const std::string name = util::base_name(path);
  for (const char* runtime : {"libasan.", "libtsan.", "libubsan.", "liblsan.", "libclang_rt."}) {
    if (util::starts_with(name, runtime)) return true;
  }
  return false;
}

// A folder of this user's alone; "" if there is none.
std::string own_folder(const std::string& path) {
  struct stat status {};
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return "";
  if (lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid() ||
      (status.st_mode & 077) != 0) {
    return "";
  }
  return path;
}

// A link to the library with a path that can be preloaded; "" if it cannot be made. It stays, for
// programs that the program starts.
std::string link_to(const std::string& library) {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  for (const std::string& parent :
       {std::string(runtime == nullptr ? "" : runtime), std::string("/tmp")}) {
    if (parent.empty() || parent[0] != '/' || !can_be_preloaded(parent)) continue;
    const std::string folder = own_folder(parent + "/cupool-" + std::to_string(geteuid()));
    if (folder.empty()) continue;
    const std::string place =
        own_folder(folder + "/" + std::to_string(std::hash<std::string>()(library)));
    if (place.empty()) continue;
    const std::string link = place + "/" + kLibraryName;
    std::error_code error;
    if (symlink(library.c_str(), link.c_str()) == 0 || fs::equivalent(link, library, error)) {
      return link;
    }
  }
  return "";
}

// The dynamic linker takes both separators.
std::vector<std::string> preload_entries(const std::string& value) {
  std::vector<std::string> entries;
  std::size_t begin = 0;
  while ((begin = value.find_first_not_of(" :", begin)) != std::string::npos) {
    const std::size_t end = std::min(value.find_first_of(" :", begin), value.size());
    entries.push_back(value.substr(begin, end - begin));
    begin = end;
  }
  return entries;
}

}  // namespace

bool can_be_preloaded(const std::string& path) {
  return path.find_first_of(" :") == std::string::npos;
}

std::string executable_folder() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? "" : path.parent_path().string();
}

std::vector<std::string> library_candidates(const std::string& folder) {
  const std::string up = folder + "/../";
  return {up + "lib/" + kLibraryName, up + "lib64/" + kLibraryName,
          up + "lib/" CUPOOL_MULTIARCH "/" + kLibraryName, folder + "/" + kLibraryName};
}

std::string find_library() {
  if (const char* chosen = std::getenv("CUPOOL_LIBRARY")) {
    if (!is_file(chosen)) {
      throw UsageError(std::string("CUPOOL_LIBRARY=") + chosen +
                       " is not a file. Set it to the path of " + kLibraryName + " or unset it");
    }
    // A link may be there because its target has a blank.
    const std::string real = absolute(chosen);
    return can_be_preloaded(real) ? real : fs::absolute(chosen).lexically_normal().string();
  }
  std::string looked;
  for (const std::string& path : library_candidates(executable_folder())) {
    if (is_file(path)) return absolute(path);
    looked += "\n  " + fs::path(path).lexically_normal().string();
  }
  throw UsageError(std::string("cannot find ") + kLibraryName + " at any of" + looked +
                   "\nSet CUPOOL_LIBRARY=/path/to/" + kLibraryName);
}

std::string preloadable(const std::string& path) {
  std::string library = can_be_preloaded(path) ? path : link_to(path);
  if (library.empty()) {
    throw UsageError("the dynamic linker cannot preload a path with a space or a colon: " + path +
                     "\nMake a link to it elsewhere and set CUPOOL_LIBRARY to the link");
  }
  return library;
}

std::string preload_value(const std::string& path, const std::string& present) {
  const std::string library = preloadable(path);
  std::vector<std::string> entries;
  for (const std::string& entry : preload_entries(present)) {
    if (util::base_name(entry) != util::base_name(library) &&
        util::base_name(entry) != kLibraryName) {
      entries.push_back(entry);
    }
  }
  const auto at = std::find_if_not(entries.begin(), entries.end(), is_sanitizer_runtime);
  entries.insert(at, library);
  std::string value;
  for (const std::string& entry : entries) value += (value.empty() ? "" : ":") + entry;
  return value;
}

std::vector<std::string> other_preloads(const std::string& present) {
  std::vector<std::string> others;
  for (const std::string& entry : preload_entries(present)) {
    if (util::base_name(entry) != kLibraryName && !is_sanitizer_runtime(entry))
      others.push_back(entry);
  }
  return others;
}

std::vector<std::string> profile_folders() {
  const std::string folder = executable_folder();
  return {folder + "/config", folder + "/../share/cupool/profiles"};
}

std::string find_profile(const std::string& text) {
  if (is_file(text)) return absolute(text);
  std::vector<std::string> names;
  for (const std::string& folder : profile_folders()) {
    const std::string path = (fs::path(folder) / (text + ".env")).string();
    if (text.find('/') == std::string::npos && is_file(path)) return absolute(path);
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".env") names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  std::string known;
  for (const std::string& name : names) {
    if (!known.empty()) known += ", ";
    known += name;
  }
  throw UsageError("there is no profile or file " + text + did_you_mean(text, names) +
                   (known.empty() ? "" : "\nProfiles: " + known));
}

}  // namespace cupool::cli
