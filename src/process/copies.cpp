// SPDX-License-Identifier: Apache-2.0
// Identifies copies by a symbol that each one exports: no state that a child process would inherit.
#include "process/copies.h"

#include <dlfcn.h>

#include <atomic>

#include "cuda/dynamic_linker.h"
#include "util/log.h"

namespace cupool::process {
namespace {

struct Object {
  const void* base = nullptr;
  const char* path = "";
};

Object object_at(const void* address) {
  Dl_info info = {};
  if (address == nullptr || dladdr(address, &info) == 0) return {};
  return {info.dli_fbase, info.dli_fname};
}

// The first copy found by a look-up with this handle; without one, the base is null.
Object copy_by(void* handle) {
  const void* const symbol = cuda::real_dlsym()(handle, "cupool_version");
  if (symbol == nullptr) dlerror();  // the program must not see the message
  return object_at(symbol);
}

const void* own_base() {
  return object_at(reinterpret_cast<const void*>(&is_first_copy)).base;
}

}  // namespace

bool is_first_copy() noexcept {
  enum : int { unknown, first, later };
  static std::atomic<int> known{unknown};
  if (known.load(std::memory_order_relaxed) == unknown) {
    // The program's own look-up; RTLD_DEFAULT would find this copy first, which is linked with
    // -Bsymbolic.
    const Object front = copy_by(cuda::program_handle());
    known.store(front.base == nullptr || front.base == own_base() ? first : later,
                std::memory_order_relaxed);
  }
  return known.load(std::memory_order_relaxed) == first;
}

void warn_of_other_copy() noexcept {
  const Object next = copy_by(RTLD_NEXT);
  if (next.base == nullptr || next.base == own_base()) return;
  CUPOOL_WARN_ONCE("a second copy of cupool, %s, steps aside; preload only one copy", next.path);
}

}  // namespace cupool::process
