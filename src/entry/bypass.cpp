// SPDX-License-Identifier: Apache-2.0
// Compares the file name of a caller's library with CUPOOL_BYPASS_LIBS.
#include "entry/bypass.h"

#include <string_view>

#include "config/settings.h"
#include "entry/caller.h"
#include "util/log.h"

namespace cupool::entry {
namespace {

// `library` is the beginning of a file name: "libnccl" stands for libnccl.so.2 as well.
bool is_listed(std::string_view library) {
  std::string_view list = config::settings().bypass_libs;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    std::string_view name = list.substr(0, comma);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    const bool matches = !name.empty() && library.substr(0, name.size()) == name;
    // "libmpi" does not match libmpich: an extension or a version must follow the prefix.
    if (matches && (library.size() == name.size() || library[name.size()] == '.' ||
                    library[name.size()] == '-' || library[name.size()] == '_')) {
      return true;
    }
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

bool is_in_listed_library(const void* caller) {
  const char* library = object_of(caller);
  const bool listed = is_listed(library);
  if (listed)
    CUPOOL_LOG(debug, "the driver serves the allocations of %s (CUPOOL_BYPASS_LIBS)", library);
  return listed;
}

}  // namespace cupool::entry
