// SPDX-License-Identifier: Apache-2.0
// Library names are compared up to the version or file ending.
#include "engine/context/rdma_libraries.h"

#include <link.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "util/lock_order.h"

namespace cupool::engine {
namespace {

const char* const rdma_libraries[] = {
#define CUPOOL_AGENT_LIBRARY(name) name,
#include "config/rdma_libraries.def"
};

const char* const libraries_below_mpi[] = {
#define CUPOOL_BELOW_MPI(name) name,
#include "config/rdma_libraries.def"
};

const char* const parts_of_mpi[] = {
#define CUPOOL_PART_OF_MPI(name) name,
#include "config/rdma_libraries.def"
};

const char* const verbs_for_themselves[] = {
#define CUPOOL_VERBS_FOR_ITSELF(name) name,
#include "config/rdma_libraries.def"
};

const char* const verbs[] = {"libibverbs.so"};

const char* const unseen_work_libraries[] = {
#define CUPOOL_UNSEEN_WORK_LIBRARY(name) name,
#include "config/unseen_work_libraries.def"
};

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

template <std::size_t count>
bool is_among(const char* const (&libraries)[count], const char* path) {
  const char* name = base_name(path);
  for (const char* library : libraries) {
    if (std::strncmp(name, library, std::strlen(library)) == 0) return true;
  }
  return false;
}

// Whether the object's list of needed libraries names one of `libraries`.
template <std::size_t count>
bool needs_any(const dl_phdr_info& object, const char* const (&libraries)[count]) {
  const char* strings = nullptr;  // each object with a dynamic section has some
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < object.dlpi_phnum; ++i) {
      const ElfW(Phdr)& header = object.dlpi_phdr[i];
      if (header.p_type != PT_DYNAMIC) continue;
      const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + header.p_vaddr);
      for (; entry->d_tag != DT_NULL; ++entry) {
        if (pass == 0 && entry->d_tag == DT_STRTAB) {
          // glibc has made an address of it, but not in objects that the kernel has mapped.
          const bool is_offset = entry->d_un.d_ptr < object.dlpi_addr;
          strings =
              reinterpret_cast<const char*>(entry->d_un.d_ptr + (is_offset ? object.dlpi_addr : 0));
        }
        if (pass == 1 && entry->d_tag == DT_NEEDED &&
            is_among(libraries, strings + entry->d_un.d_val)) {
          return true;
        }
      }
    }
  }
  return false;
}

const char* path_of(const dl_phdr_info& object) {
  return object.dlpi_name == nullptr ? "" : object.dlpi_name;
}

// Whether what the object needs, or is itself, shows a use of RDMA that is none of MPI's.
int looks_past_mpi(dl_phdr_info* object, std::size_t, void* data) {
  const char* const path = path_of(*object);
  if (is_part_of_mpi(path)) return 0;
  if (!is_among(libraries_below_mpi, path) && !needs_any(*object, libraries_below_mpi)) return 0;
  *static_cast<const char**>(data) = *path == '\0' ? "the program" : base_name(path);
  return 1;
}

int uses_verbs(dl_phdr_info* object, std::size_t, void*) {
  const char* const path = path_of(*object);
  return !is_part_of_mpi(path) && !is_among(verbs_for_themselves, path) &&
         needs_any(*object, verbs);
}

struct Look {
  bool (*is_wanted)(const char* path);
  const char* found = nullptr;
};
int look(dl_phdr_info* object, std::size_t, void* data) {
  auto* const look = static_cast<Look*>(data);
  if (object->dlpi_name == nullptr || !look->is_wanted(object->dlpi_name)) return 0;
  look->found = object->dlpi_name;
  return 1;
}

// The first object is enough: each call carries the counts of all objects ever added and removed.
struct Changes {
  std::uint64_t additions = 0;
  std::uint64_t removals = 0;
};
int read_changes(dl_phdr_info* object, std::size_t, void* data) {
  auto* const changes = static_cast<Changes*>(data);
  changes->additions = object->dlpi_adds;
  changes->removals = object->dlpi_subs;
  return 1;
}

std::atomic<std::uint64_t> seen_additions{0};
std::atomic<std::uint64_t> seen_removals{0};
// Held while the dynamic linker's list of objects is read.
util::Ranked<util::LockRank::library_look> looking;
thread_local unsigned holds;  // two threads may register the handlers twice

// Around a fork: the linker locks its list, and the lock would stay held in the child.
void hold_looks() {
  if (holds++ == 0) looking.lock();
}
void resume_looks() {
  if (--holds == 0) looking.unlock();
}

// Registers the fork handlers before `looking` is taken, at the first look, which may come before
// there is an engine.
void watch_forks() {
  static std::atomic<bool> watching{false};
  if (watching.load(std::memory_order_acquire)) return;
  pthread_atfork(hold_looks, resume_looks, resume_looks);
  watching.store(true, std::memory_order_release);
}

// Under `looking`.
bool are_verbs_used() {
  static std::uint64_t unused_up_to = 0;  // objects that were ever added, none of which used verbs
  Changes changes;
  dl_iterate_phdr(read_changes, &changes);
  if (changes.additions == unused_up_to) return false;
  const bool used = dl_iterate_phdr(uses_verbs, nullptr) != 0;
  if (!used) unused_up_to = changes.additions;
  return used;
}

// Copied: the linker's own text ends with the library.
std::array<char, 256> noted_name{};
std::atomic<bool> is_noted{false};

}  // namespace

bool libraries_were_added() {
  watch_forks();
  const std::unique_lock lock(looking, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  Changes changes;
  dl_iterate_phdr(read_changes, &changes);
  return seen_additions.exchange(changes.additions, std::memory_order_relaxed) != changes.additions;
}

bool libraries_were_removed() {
  watch_forks();
  const std::unique_lock lock(looking, std::try_to_lock);
  if (!lock.owns_lock()) return true;
  Changes changes;
  dl_iterate_phdr(read_changes, &changes);
  return seen_removals.exchange(changes.removals, std::memory_order_relaxed) != changes.removals;
}

bool is_rdma_library(const char* path) {
  return is_among(rdma_libraries, path);
}

// NCCL opens verbs where there are any, so they are loaded in many a process that needs none. What
// needs them is looked for once in each state of the process.
const char* loaded_rdma_library() {
  watch_forks();
  Look wanted{is_rdma_library};
  const std::lock_guard lock(looking);
  dl_iterate_phdr(look, &wanted);
  if (wanted.found == nullptr) {
    wanted.is_wanted = [](const char* path) { return is_among(verbs, path); };
    if (dl_iterate_phdr(look, &wanted) != 0 && !are_verbs_used()) wanted.found = nullptr;
  }
  if (wanted.found != nullptr && !is_noted.load(std::memory_order_relaxed)) {
    std::strncpy(noted_name.data(), base_name(wanted.found), noted_name.size() - 1);
    is_noted.store(true, std::memory_order_release);
  }
  return wanted.found;
}

const char* noted_rdma_library() {
  return is_noted.load(std::memory_order_acquire) ? noted_name.data() : nullptr;
}

const char* loaded_unseen_work_library() {
  watch_forks();
  Look wanted{[](const char* path) { return is_among(unseen_work_libraries, path); }};
  const std::lock_guard lock(looking);
  dl_iterate_phdr(look, &wanted);
  return wanted.found;
}

// Providers of libfabric and of libibverbs have names of any beginning.
bool is_part_of_mpi(const char* path) {
  const char* const name = base_name(path);
  return is_among(parts_of_mpi, path) || std::strstr(name, "-fi.so") != nullptr ||
         std::strstr(name, "-rdmav") != nullptr;
}

const char* rdma_user_beside_mpi() {
  watch_forks();
  const char* user = nullptr;
  const std::lock_guard lock(looking);
  dl_iterate_phdr(looks_past_mpi, &user);
  return user;
}

const char* loaded_mpi_library() {
  watch_forks();
  Look wanted{[](const char* path) {
    return is_rdma_library(path) && !is_among(libraries_below_mpi, path);
  }};
  const std::lock_guard lock(looking);
  dl_iterate_phdr(look, &wanted);
  return wanted.found;
}

}  // namespace cupool::engine
