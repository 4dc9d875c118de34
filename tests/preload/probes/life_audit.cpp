// SPDX-License-Identifier: Apache-2.0
// A small audit library (LD_AUDIT): it sees every object and every binding, and changes nothing.
#include <elf.h>
#include <link.h>

#include <cstdint>

#define AUDIT_EXPORT extern "C" __attribute__((visibility("default")))

AUDIT_EXPORT unsigned int la_version(unsigned int loaders) {
  return loaders < LAV_CURRENT ? loaders : LAV_CURRENT;  // an older C library's
}

AUDIT_EXPORT unsigned int la_objopen(link_map*, Lmid_t, std::uintptr_t*) {
  return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

AUDIT_EXPORT std::uintptr_t la_symbind64(Elf64_Sym* symbol, unsigned int, std::uintptr_t*,
                                         std::uintptr_t*, unsigned int*, const char*) {
  return symbol->st_value;
}
