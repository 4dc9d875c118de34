// SPDX-License-Identifier: Apache-2.0
// The guards of MPI's functions, and look-ups of them.
#include "entry/mpi_calls.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "cuda/dynamic_linker.h"
#include "engine/context/rdma_libraries.h"
#include "engine/reclaim/message_calls.h"
#include "entry/caller.h"
#include "entry/guards.h"
#include "entry/symbol_query.h"
#include "process/lifecycle.h"
#include "util/log.h"

// In guards_*.S: an array of entries.
extern "C" const char cupool_mpi_entries[] __attribute__((visibility("hidden")));

namespace cupool::entry {
namespace {

using Address = std::uintptr_t;

struct Function {
  const char* pmpi_name;
  bool completes;
};
constexpr Function kFunctions[] = {
#define CUPOOL_MPI_CALL(name) {"PMPI_" #name, false},
#define CUPOOL_MPI_COMPLETION(name) {"PMPI_" #name, true},
#include "entry/mpi_calls.def"
#undef CUPOOL_MPI_CALL
#undef CUPOOL_MPI_COMPLETION
};
// MPI_NAME has an even number, PMPI_NAME the odd one behind it.
constexpr std::size_t kEntries = 2 * sizeof kFunctions / sizeof *kFunctions;
constexpr std::size_t kMpiEntryBytes = std::size_t{1} << CUPOOL_NEWER_ENTRY_SHIFT;

Address address_of(const void* pointer) {
  return reinterpret_cast<Address>(pointer);
}

const char* name_of(std::size_t index) {
  return kFunctions[index / 2].pmpi_name + (index % 2 == 0 ? 1 : 0);
}

std::optional<std::size_t> index_of(const char* symbol) {
  if (*symbol != 'M' && *symbol != 'P') return std::nullopt;
  for (std::size_t index = 0; index < kEntries; ++index) {
    if (std::strcmp(name_of(index), symbol) == 0) return index;
  }
  return std::nullopt;
}

// The real function of a guard, for the callers between two addresses. Most processes have one MPI,
// which all callers use. Stand-ins for it, or an MPI that a plugin brings, belong to their objects.
struct Real {
  std::atomic<void*> function{nullptr};  ///< null: not known, or about to change
  std::atomic<Address> begin{0};
  std::atomic<Address> end{0};
  std::atomic<unsigned> generation{0};

  void* get(const void* caller, unsigned now) const {
    void* const found = function.load(std::memory_order_acquire);
    const bool is_for = begin.load(std::memory_order_acquire) <= address_of(caller) &&
                        address_of(caller) < end.load(std::memory_order_acquire) &&
                        generation.load(std::memory_order_acquire) == now;
    return is_for && function.load(std::memory_order_relaxed) == found ? found : nullptr;
  }
  void set(void* found, Address from, Address to, unsigned now) {
    function.store(nullptr, std::memory_order_seq_cst);
    begin.store(from, std::memory_order_release);
    end.store(to, std::memory_order_release);
    generation.store(now, std::memory_order_release);
    function.store(found, std::memory_order_release);
  }
};
std::array<Real, kEntries> reals;
std::atomic<unsigned> generation{1};           // what was found in an earlier one is forgotten
std::atomic_flag changing = ATOMIC_FLAG_INIT;  // guards writes; whoever finds it set writes nothing

struct Range {
  Address of;
  Address begin = 0;
  Address end = 0;
};
int find_range(dl_phdr_info* object, std::size_t, void* data) {
  auto* const range = static_cast<Range*>(data);
  Address begin = UINTPTR_MAX;
  Address end = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const Address start = object->dlpi_addr + header.p_vaddr;
    begin = std::min(begin, start);
    end = std::max(end, start + header.p_memsz);
  }
  if (range->of < begin || range->of >= end) return 0;
  range->begin = begin;
  range->end = end;
  return 1;
}

void keep(std::size_t index, void* found, Address begin, Address end, unsigned now) {
  if (changing.test_and_set(std::memory_order_acquire)) return;
  reals[index].set(found, begin, end, now);
  changing.clear(std::memory_order_release);
}

// For the callers of the object at `caller`; where there is none, as of code made at run time, for
// this caller.
void keep_for(std::size_t index, void* found, const void* caller, unsigned now) {
  Range range{address_of(caller)};
  if (dl_iterate_phdr(find_range, &range) == 0) range.end = (range.begin = range.of) + 1;
  keep(index, found, range.begin, range.end, now);
}

int without_mpi() {
  constexpr int kOtherError = 16;  // MPI_ERR_OTHER of Open MPI; any error will do
  CUPOOL_WARN_ONCE(
      "the program calls a function of MPI without MPI: cupool exports these functions, and a weak "
      "reference finds them. CUPOOL_ENABLE=0 does not change that; start it without cupool");
  return kOtherError;
}

void* guard_of(std::size_t index) {
  return const_cast<char*>(cupool_mpi_entries) + index * kMpiEntryBytes;
}

bool is_guard(const void* function) {
  return address_of(function) - address_of(&cupool_mpi_entries) < kEntries * kMpiEntryBytes;
}

void* look_up_in(const char* path, const char* name) {
  void* const library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* const found = cuda::real_dlsym()(library, name);
  cuda::real_dlclose()(library);  // whoever calls it keeps it loaded
  return found == nullptr || is_guard(found) ? nullptr : found;
}

int note_path(dl_phdr_info* object, std::size_t, void* data) {
  auto* const paths = static_cast<std::vector<std::string>*>(data);
  if (object->dlpi_name != nullptr && *object->dlpi_name != '\0') {
    paths->emplace_back(object->dlpi_name);
  }
  return 0;
}

// In any object of the process: for a caller whose return address says nothing of the object that
// the call is from, or which leaves its libraries to others.
void* look_up_anywhere(const char* name) {
  try {
    std::vector<std::string> paths;
    dl_iterate_phdr(note_path, &paths);
    for (const std::string& path : paths) {
      if (void* const found = look_up_in(path.c_str(), name)) return found;
    }
  } catch (const std::bad_alloc&) {  // as if there were none
  }
  return nullptr;
}

// The next definition behind cupool; or that of the caller's own libraries; or, where MPI is in a
// scope of its own, that of MPI's library; or any. Null: there is none.
void* find(std::size_t index, const void* caller) {
  const char* const name = name_of(index);
  const unsigned now = generation.load(std::memory_order_acquire);
  void* found = cuda::real_dlsym()(RTLD_NEXT, name);
  if (found != nullptr && !is_guard(found)) {
    keep(index, found, 0, UINTPTR_MAX, now);
    return found;
  }
  dlerror();
  found = look_up_behind_us(caller, name);
  if (found == nullptr || is_guard(found)) {
    const char* const path = engine::loaded_mpi_library();
    found = path == nullptr ? nullptr : look_up_in(path, name);
  }
  if (found != nullptr) {
    keep_for(index, found, caller, now);
    return found;
  }
  found = look_up_anywhere(name);
  dlerror();
  if (found != nullptr) keep(index, found, address_of(caller), address_of(caller) + 1, now);
  return found;
}

void* real_of(std::size_t index, const void* caller) {
  void* const known = reals[index].get(caller, generation.load(std::memory_order_acquire));
  return known != nullptr ? known : find(index, caller);
}

// Whether the object of the code at `caller` defines `symbol` itself: a tool around MPI.
bool defines_itself(const char* symbol, const void* caller) {
  Dl_info own = {};
  Dl_info info = {};
  void* const object = handle_of(caller);
  void* const found = object == nullptr ? nullptr : cuda::real_dlsym()(object, symbol);
  return found != nullptr && dladdr(caller, &own) != 0 && dladdr(found, &info) != 0 &&
         own.dli_fbase == info.dli_fbase;
}

void note_unseen_route() {
  engine::MessageCalls::note_unseen_route();
  if (engine::Allocator* const allocator = process::engine()) allocator->idle().settle_free_mode();
}

}  // namespace

void* mpi_called(std::uint64_t index, const void* caller) {
  engine::MessageCalls::note();
  if (engine::Allocator* const allocator = process::engine()) {
    engine::Messages& messages = allocator->synchronization().messages();
    kFunctions[index / 2].completes ? messages.before_completion() : messages.before_call();
  }
  void* const real = real_of(index, caller);
  return real != nullptr ? real : reinterpret_cast<void*>(&without_mpi);
}

std::optional<void*> look_up_mpi(void* handle, const char* symbol, const void* caller) {
  const std::optional<std::size_t> index = index_of(symbol);
  if (!index.has_value()) return std::nullopt;
  const bool by_mpi = engine::is_part_of_mpi(object_of(caller));
  if (handle == RTLD_NEXT) {
    if (look_up_behind_us(caller, symbol) == nullptr) return nullptr;  // it would find the guard
    if (!by_mpi && !defines_itself(symbol, caller)) note_unseen_route();
    return std::nullopt;
  }
  if (handle == RTLD_DEFAULT && is_defined_before_us(symbol)) return std::nullopt;
  void* const found = cuda::real_dlsym()(handle, symbol);
  if (found == nullptr) return std::nullopt;
  if (is_guard(found)) return look_up_behind_us(caller, symbol) == nullptr ? nullptr : found;
  if (found == real_of(*index, caller)) return guard_of(*index);
  if (!by_mpi) note_unseen_route();
  return found;
}

void forget_mpi_functions() {
  generation.fetch_add(1, std::memory_order_release);
}

}  // namespace cupool::entry
