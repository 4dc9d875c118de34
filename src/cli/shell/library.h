// SPDX-License-Identifier: Apache-2.0
// Locates libcupool.so relative to the command. The two are installed and moved together, so no
// absolute path is built in.
#pragma once

#include <string>
#include <vector>

namespace cupool::cli {

/// The folder of the running executable, links resolved; "" if unknown.
std::string executable_folder();

/// The paths at which an executable in `folder` expects the library, in this order: ../lib,
/// ../lib64, `../lib/<multiarch>` (as installed), the folder itself (as built).
std::vector<std::string> library_candidates(const std::string& folder);

/// The absolute path of the library: CUPOOL_LIBRARY, else the first existing candidate. Throws
/// UsageError with the list of candidates.
std::string find_library();

/// Whether LD_PRELOAD can hold the path: the dynamic linker takes blanks and colons as separators,
/// and knows no quotes.
bool can_be_preloaded(const std::string& path);

/// The path of the library, or, if LD_PRELOAD cannot hold it, of a link to it in a folder of this
/// user on this machine. Throws UsageError if none can be made.
std::string preloadable(const std::string& library);

/// The value of LD_PRELOAD with `library` (made preloadable) first and the `present` entries behind
/// it. A sanitizer's runtime stays in front, as it must; another libcupool.so is replaced.
std::string preload_value(const std::string& library, const std::string& present);

/// The entries of an LD_PRELOAD other than cupool and sanitizer runtimes.
std::vector<std::string> other_preloads(const std::string& present);

/// Folders of profiles: config (as built) and ../share/cupool/profiles (as installed).
std::vector<std::string> profile_folders();

/// The file of `--profile text`: a path, or the name of a profile that comes with cupool. Throws
/// UsageError with the known names.
std::string find_profile(const std::string& text);

}  // namespace cupool::cli
