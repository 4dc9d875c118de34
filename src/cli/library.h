// Where libcupool.so is, as seen from the command: the two are installed and moved together, so no
// absolute path is built in.
#pragma once

#include <string>
#include <vector>

namespace cupool::cli {

/// The folder of the running executable, links resolved; "" if the kernel does not say.
std::string executable_folder();

/// Where the library is looked for beside an executable in `folder`, in this order: ../lib,
/// ../lib64, ../lib/<multiarch> (as installed), and the folder itself (as built).
std::vector<std::string> library_candidates(const std::string& folder);

/// The absolute path of the library: what CUPOOL_LIBRARY names, else the first candidate that
/// exists. Throws UsageError that lists where it looked.
std::string find_library();

/// The value of LD_PRELOAD that puts `library` first, and keeps what was there: a sanitizer's
/// runtime, which must come before everything, stays in front; another libcupool.so is replaced.
/// Throws UsageError if the dynamic linker could not read the path (a blank or colon in it).
std::string preload_value(const std::string& library, const std::string& present);

/// The entries of an LD_PRELOAD that are neither cupool nor a sanitizer's runtime.
std::vector<std::string> other_preloads(const std::string& present);

/// Folders with profiles: beside the library as built (config) and as installed
/// (../share/cupool/profiles).
std::vector<std::string> profile_folders();

/// What `--profile text` names: a file, or the name of a profile that comes with cupool. Throws
/// UsageError with the names that there are.
std::string find_profile(const std::string& text);

}  // namespace cupool::cli
