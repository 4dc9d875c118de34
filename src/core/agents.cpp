// Names are matched up to the point where a version or ending begins.
#include "core/agents.h"

#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace cupool::core {
namespace {

const char* const agent_libraries[] = {
#define CUPOOL_AGENT_LIBRARY(name) name,
#include "config/agent_libraries.def"
};

int look(dl_phdr_info* object, std::size_t, void* found) {
  if (object->dlpi_name == nullptr || !is_agent_library(object->dlpi_name)) return 0;
  *static_cast<const char**>(found) = object->dlpi_name;
  return 1;
}

// The first object suffices: each carries the count of all that were ever added.
int read_additions(dl_phdr_info* object, std::size_t, void* additions) {
  *static_cast<std::uint64_t*>(additions) = object->dlpi_adds;
  return 1;
}

std::atomic<std::uint64_t> seen_additions{0};
std::mutex looking;  // held while the dynamic linker's list of objects is read
thread_local unsigned holds;

}  // namespace

bool libraries_were_added() {
  const std::unique_lock<std::mutex> lock(looking, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  std::uint64_t additions = 0;
  dl_iterate_phdr(read_additions, &additions);
  return seen_additions.exchange(additions, std::memory_order_relaxed) != additions;
}

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
  const std::lock_guard<std::mutex> lock(looking);
  dl_iterate_phdr(look, &found);
  return found;
}

void hold_looks_at_libraries() {
  if (holds++ == 0) looking.lock();
}

void resume_looks_at_libraries() {
  if (--holds == 0) looking.unlock();
}

}  // namespace cupool::core
