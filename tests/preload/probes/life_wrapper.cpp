// SPDX-License-Identifier: Apache-2.0
// Another preloaded library of the kind that memory profilers are: it wraps malloc, free and dlsym
// itself. It finds the real ones behind it in the order of the preloads, or, with
// LIFE_WRAPPER_FROM_START, looks for dlsym from the start of that order.
#include <dlfcn.h>
#include <gnu/libc-version.h>

#include <cstddef>
#include <cstring>
#include <initializer_list>

namespace {

#if defined(LIFE_WRAPPER_FROM_START)
void* const kWhere = RTLD_DEFAULT;
#else
void* const kWhere = RTLD_NEXT;
#endif

using Dlsym = void* (*)(void*, const char*);

Dlsym next_dlsym() {
  static void* found = nullptr;
  // A failed look-up would call malloc.
  const bool is_old = std::strcmp(gnu_get_libc_version(), "2.34") < 0;
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
    if (is_old && version[8] == '3') continue;
#if defined(__x86_64__)
    if (std::strcmp(version, "GLIBC_2.17") == 0) continue;
#endif
    if (found == nullptr) found = dlvsym(kWhere, "dlsym", version);
  }
  return reinterpret_cast<Dlsym>(found);
}

}  // namespace

#define WRAPPER_EXPORT extern "C" __attribute__((visibility("default")))

// No guarded statics: the first call may come from within the dynamic linker.
WRAPPER_EXPORT void* malloc(std::size_t bytes) noexcept {
  static void* real = nullptr;
  if (real == nullptr) real = next_dlsym()(RTLD_NEXT, "malloc");
  return reinterpret_cast<void* (*)(std::size_t)>(real)(bytes);
}

WRAPPER_EXPORT void free(void* block) noexcept {
  static void* real = nullptr;
  if (real == nullptr) real = next_dlsym()(RTLD_NEXT, "free");
  reinterpret_cast<void (*)(void*)>(real)(block);
}

WRAPPER_EXPORT void* dlsym(void* handle, const char* name) noexcept {
  static char mark;
  if (std::strcmp(name, "life_wrapper_mark") == 0)
    return &mark;  // the program's look-ups come here
  return next_dlsym()(handle, name);
}
