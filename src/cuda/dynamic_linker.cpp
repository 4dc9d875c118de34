// SPDX-License-Identifier: Apache-2.0
// Finds the `dlsym` of libc and the next one. This may run before any constructor (a sanitizer's
// start, another preload), so it uses no C++ runtime and keeps its result in a plain variable.
#include "cuda/dynamic_linker.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>

extern "C" {
void* cupool_next_dlsym = nullptr;
}

namespace cupool::cuda {
namespace {

void* libc_dlsym = nullptr;
void* found_dlclose = nullptr;
bool came_back = false;

// An existing name, which cupool exports: a failed look-up would leave an error, and clearing that
// may call the other library's free too early. Recognised by its address.
const char kRoundTripName[] = "cuMemAlloc_v2";

#if defined(__x86_64__)
const char kFirstVersion[] = "GLIBC_2.2.5";
#else
const char kFirstVersion[] = "GLIBC_2.17";
#endif

bool is_libc_before_2_34() {
  const char* at = gnu_get_libc_version();  // "2.31"
  if (at[0] != '2' || at[1] != '.') return false;
  int minor = 0;
  for (at += 2; *at >= '0' && *at <= '9'; ++at) minor = minor * 10 + (*at - '0');
  return minor < 34;
}

// The other library's look-up of `dlsym` may lead back to ours: forwarding calls to it would never
// end.
bool comes_back(DlsymFunction other) {
  __atomic_store_n(&came_back, false, __ATOMIC_RELAXED);
  other(RTLD_DEFAULT, kRoundTripName);
  return __atomic_load_n(&came_back, __ATOMIC_RELAXED);
}

}  // namespace

DlsymFunction real_dlsym() {
  void* found = __atomic_load_n(&libc_dlsym, __ATOMIC_ACQUIRE);
  if (found == nullptr) {
    // dlsym moved to libc in 2.34; before that, its version is the architecture's first.
    static const char* const versions[] = {"GLIBC_2.34", kFirstVersion};
    for (const char* version : versions) {
      // A failed look-up takes memory, from a heap that may be asking for dlsym right now.
      if (version != kFirstVersion && is_libc_before_2_34()) continue;
      found = dlvsym(RTLD_NEXT, "dlsym", version);
      if (found != nullptr) break;
    }
    // A program that is linked with cupool may have libdl, where dlsym was before 2.34, before it.
    if (found == nullptr) {
      void* const libdl = dlopen("libdl.so.2", RTLD_LAZY | RTLD_NOLOAD);
      if (libdl != nullptr) found = dlvsym(libdl, "dlsym", kFirstVersion);
    }
    __atomic_store_n(&libc_dlsym, found, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<DlsymFunction>(found);
}

DlsymFunction next_dlsym() {
  const DlsymFunction libc = real_dlsym();
  void* next = __atomic_load_n(&cupool_next_dlsym, __ATOMIC_ACQUIRE);
  if (next == nullptr) {
    // Calls in the meantime go to libc.
    __atomic_store_n(&cupool_next_dlsym, reinterpret_cast<void*>(libc), __ATOMIC_RELEASE);
    next = libc(RTLD_NEXT, "dlsym");
    const auto other = reinterpret_cast<DlsymFunction>(next);
    if (other == nullptr || (other != libc && comes_back(other))) {
      next = reinterpret_cast<void*>(libc);
    }
    __atomic_store_n(&cupool_next_dlsym, next, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<DlsymFunction>(next);
}

// Entries before cupool in the list are never removed.
void* program_handle() {
  Dl_info info = {};
  void* entry = nullptr;
  if (dladdr1(reinterpret_cast<const void*>(&program_handle), &info, &entry, RTLD_DL_LINKMAP) ==
      0) {
    return RTLD_DEFAULT;
  }
  auto* object = static_cast<link_map*>(entry);
  while (object->l_prev != nullptr) object = object->l_prev;
  return object;
}

CloseFunction real_dlclose() {
  void* found = __atomic_load_n(&found_dlclose, __ATOMIC_ACQUIRE);
  if (found == nullptr) {
    found = real_dlsym()(RTLD_NEXT, "dlclose");
    __atomic_store_n(&found_dlclose, found, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<CloseFunction>(found);
}

bool is_round_trip(const char* name) {
  if (name != kRoundTripName) return false;
  __atomic_store_n(&came_back, true, __ATOMIC_RELAXED);
  return true;
}

}  // namespace cupool::cuda
