// Names are matched up to the point where a version or ending begins.
#include "core/agents.h"

#include <link.h>

#include <cstring>

namespace cupool::core {
namespace {

// cuFile is not among them: PyTorch loads it without using it, and what it registers is marked by
// SYNC_MEMOPS, which keeps a block from being served again.
const char* const agent_libraries[] = {
    "libmpi.so", "libmpi_cxx.so", "libmpich.so",  "libmpicxx.so", "libmpi_gnu",
    "libucp.so", "libuct.so",     "libfabric.so", "libgdrapi.so",
};

int look(dl_phdr_info* object, std::size_t, void* found) {
  if (object->dlpi_name == nullptr || !is_agent_library(object->dlpi_name)) return 0;
  *static_cast<const char**>(found) = object->dlpi_name;
  return 1;
}

}  // namespace

bool is_agent_library(const char* path) {
  const char* slash = std::strrchr(path, '/');
  const char* name = slash == nullptr ? path : slash + 1;
  for (const char* library : agent_libraries) {
    if (std::strncmp(name, library, std::strlen(library)) == 0) return true;
  }
  return false;
}

const char* loaded_agent_library() {
  const char* found = nullptr;
  dl_iterate_phdr(look, &found);
  return found;
}

}  // namespace cupool::core
