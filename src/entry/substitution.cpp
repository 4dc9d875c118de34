// SPDX-License-Identifier: Apache-2.0
// The look-up table of hooks.def.
#include "entry/substitution.h"

#include <dlfcn.h>

#include <cstring>

#include "cuda/driver.h"
#include "entry/hooks.h"
#include "entry/newer.h"
#include "process/lifecycle.h"
#include "util/log.h"

namespace cupool::entry {
namespace {

enum class Stream { any, legacy, per_thread };

struct Hook {
  const char* symbol;
  const char* base;
  int since;
  Stream stream;
  void* entry;
};

const Hook hooks[] = {
#define HOOK(symbol, base, since, stream) \
  {#symbol, #base, since, Stream::stream, reinterpret_cast<void*>(&cupool_hook_##symbol)},
#define RUNTIME_HOOK(symbol)
#define LIBC_HOOK(symbol)
#include "entry/hooks.def"
#undef HOOK
#undef RUNTIME_HOOK
#undef LIBC_HOOK
};

const char* const runtime_hooks[] = {
#define HOOK(symbol, base, since, stream)
#define RUNTIME_HOOK(symbol) #symbol,
#define LIBC_HOOK(symbol)
#include "entry/hooks.def"
#undef HOOK
#undef RUNTIME_HOOK
#undef LIBC_HOOK
};

// The driver's exported name of the function at `address`; null if there is none.
const char* exported_name(void* address) {
  Dl_info info = {};
  return dladdr(address, &info) != 0 && info.dli_saddr == address ? info.dli_sname : nullptr;
}

bool stream_matches(Stream stream, std::uint64_t flags) {
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  return stream == Stream::any || (stream == Stream::per_thread) == per_thread;
}

}  // namespace

bool is_driver_hook(const char* symbol) {
  for (const Hook& hook : hooks) {
    if (std::strcmp(hook.symbol, symbol) == 0) return true;
  }
  return false;
}

bool is_hooked_base(std::string_view base) {
  for (const Hook& hook : hooks) {
    if (base == hook.base) return true;
  }
  return false;
}

bool is_runtime_hook(const char* symbol) {
  for (const char* name : runtime_hooks) {
    if (std::strcmp(name, symbol) == 0) return true;
  }
  return false;
}

void* substitute_symbol(const char* symbol, void* real) {
  const cuda::Driver* driver = cuda::driver();
  if (driver == nullptr || !process::enabled()) return real;
  for (const Hook& hook : hooks) {
    if (std::strcmp(hook.symbol, symbol) != 0) continue;
    return driver->find(symbol) == real ? hook.entry : real;
  }
  return real;
}

void* substitute_query(const char* base, int version, std::uint64_t flags, void* real) {
  const cuda::Driver* driver = cuda::driver();
  if (driver == nullptr || !process::enabled()) return real;
  const Hook* by_version = nullptr;
  bool hooked = false;
  for (const Hook& hook : hooks) {
    if (std::strcmp(hook.base, base) != 0) continue;
    hooked = true;
    if (driver->find(hook.symbol) == real) return hook.entry;
    if (hook.since <= version && stream_matches(hook.stream, flags) &&
        (by_version == nullptr || by_version->since < hook.since)) {
      by_version = &hook;
    }
  }
  // libcudart looks up hundreds of names at the start of a program: most end here.
  if ((!hooked && !is_of_guarded_kind(base)) || is_our_entry(real)) return real;
  // A function exported under another name has other parameters.
  const char* const symbol = exported_name(real);
  if (symbol != nullptr && is_driver_hook(symbol)) return substitute_symbol(symbol, real);
  if (!hooked || (symbol != nullptr && is_newer(symbol))) {
    return guard_newer(symbol != nullptr ? symbol : base, real);
  }
  if (by_version == nullptr) return real;
  // The driver has the function, but not at an exported address: name, version and flag identify
  // it. Without the driver's own export, the hook could not forward.
  if (driver->find(by_version->symbol) == nullptr) return real;
  CUPOOL_LOG(debug,
             "cuGetProcAddress(%s, %d) returned a function that is not exported; treated as %s",
             base, version, by_version->symbol);
  return by_version->entry;
}

bool is_our_entry(const void* address) {
  for (const Hook& hook : hooks) {
    if (hook.entry == address) return true;
  }
  return false;
}

}  // namespace cupool::entry
