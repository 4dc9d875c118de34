// SPDX-License-Identifier: Apache-2.0
// The guards of MPI's functions, and look-ups of them.
#include "entry/mpi_calls.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "cuda/dynamic_linker.h"
#include "engine/context/rdma_libraries.h"
#include "engine/reclaim/message_calls.h"
#include "entry/caller.h"
#include "entry/guards.h"
#include "process/lifecycle.h"

// In guards_*.S: an array of entries.
extern "C" const char cupool_mpi_entries[] __attribute__((visibility("hidden")));

namespace cupool::entry {
namespace {

constexpr const char* kNames[] = {
#define CUPOOL_MPI_CALL(name) "PMPI_" #name,
#include "entry/mpi_calls.def"
#undef CUPOOL_MPI_CALL
};
constexpr std::size_t kFunctions = sizeof kNames / sizeof *kNames;
constexpr std::size_t kEntryBytes = std::size_t{1} << CUPOOL_NEWER_ENTRY_SHIFT;

// MPI_NAME has an even number, PMPI_NAME the odd one behind it.
std::array<std::atomic<void*>, 2 * kFunctions> reals{};

const char* name_of(std::size_t index) {
  return kNames[index / 2] + (index % 2 == 0 ? 1 : 0);
}

std::optional<std::size_t> index_of(const char* symbol) {
  if (*symbol != 'M' && *symbol != 'P') return std::nullopt;
  for (std::size_t index = 0; index < reals.size(); ++index) {
    if (std::strcmp(name_of(index), symbol) == 0) return index;
  }
  return std::nullopt;
}

// The next definition behind cupool; or, where MPI is not in the global scope, that of its library.
void* find(std::size_t index) {
  void* found = cuda::real_dlsym()(RTLD_NEXT, name_of(index));
  if (found != nullptr) return found;
  dlerror();
  const char* const path = engine::loaded_mpi_library();
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  found = cuda::real_dlsym()(library, name_of(index));
  cuda::real_dlclose()(library);  // whoever calls it keeps it loaded
  return found;
}

void* real_of(std::size_t index) {
  void* real = reals[index].load(std::memory_order_acquire);
  if (real == nullptr) {
    real = find(index);
    reals[index].store(real, std::memory_order_release);
  }
  return real;
}

void* guard_of(std::size_t index) {
  return const_cast<char*>(cupool_mpi_entries) + index * kEntryBytes;
}

bool is_ours(const void* function) {
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(function) -
                             reinterpret_cast<std::uintptr_t>(&cupool_mpi_entries);
  return offset < reals.size() * kEntryBytes;
}

}  // namespace

void* mpi_called(std::uint64_t index) {
  engine::MessageCalls::note();
  if (engine::Allocator* const allocator = process::engine())
    allocator->synchronization().messages().before_call();
  return real_of(index);
}

std::optional<void*> look_up_mpi(void* handle, const char* symbol, const void* caller) {
  if (handle == RTLD_NEXT) return std::nullopt;
  const std::optional<std::size_t> index = index_of(symbol);
  if (!index.has_value()) return std::nullopt;
  void* found = handle == RTLD_DEFAULT ? guard_of(*index) : cuda::real_dlsym()(handle, symbol);
  if (found == nullptr) return std::nullopt;
  if (is_ours(found)) return real_of(*index) == nullptr ? nullptr : found;
  if (found == real_of(*index)) return guard_of(*index);
  if (engine::is_part_of_mpi(object_of(caller))) return found;
  engine::MessageCalls::note_unseen_route();
  if (engine::Allocator* const allocator = process::engine()) allocator->idle().settle_free_mode();
  return found;
}

}  // namespace cupool::entry
