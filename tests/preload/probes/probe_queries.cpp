// SPDX-License-Identifier: Apache-2.0
// Symbol queries of a program that has nothing to do with CUDA (contract 13; docs/design.md,
// Routes): no route invents a function, and queries that depend on the caller keep their meaning.
#include <dlfcn.h>

#include <string>

#include "probe.h"

extern "C" int query_marker();  // the first library's
extern "C" int query_next_of_a();
extern "C" int query_next_of_b();
extern "C" bool query_libc_of_a();

namespace {

enum class Name { kHooked, kOther };

void print_query(void* handle, const char* handle_name, const char* name,
                 Name kind = Name::kHooked) {
  dlerror();
  const void* found = dlsym(handle, name);
  const char* error = dlerror();
  // The message names the object that asked; with a wrapper in between it would name ours. For
  // names that we export ourselves the refusal is ours, and only its presence is promised.
  const char* message = error == nullptr ? "no error" : kind == Name::kHooked ? "an error" : error;
  std::printf("dlsym(%s, \"%s\") %s; %s\n", handle_name, name, found == nullptr ? "null" : "found",
              message);
}

}  // namespace

int main() {
  for (const char* name :
       {"cuMemAlloc_v2", "cuMemFree_v2", "cuGetProcAddress", "cuGetProcAddress_v2", "cudaMalloc",
        "cudaFree", "cudaDeviceSynchronize"}) {
    print_query(RTLD_DEFAULT, "RTLD_DEFAULT", name);
    print_query(RTLD_NEXT, "RTLD_NEXT", name);
  }
  for (const char* name : {"cupool_no_such_function", "cuMemAlloc", "", "printf"}) {
    print_query(RTLD_DEFAULT, "RTLD_DEFAULT", name, Name::kOther);
    print_query(RTLD_NEXT, "RTLD_NEXT", name, Name::kOther);
  }
  void* self = dlopen(nullptr, RTLD_NOW);
  CHECK(self != nullptr);
  print_query(self, "self", "cuMemAlloc_v2");
  print_query(self, "self", "cudaMalloc");
  print_query(self, "self", "query_marker");
  std::printf("driver loaded: %d\n", dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW) != nullptr);

  std::printf("marker %d, next of a %d, next of b %d, libc of a %d\n", query_marker(),
              query_next_of_a(), query_next_of_b(), query_libc_of_a());
  // dlsym itself, asked for by name, works as a function, and so does dlvsym.
  const auto dlsym_by_name =
      reinterpret_cast<void* (*)(void*, const char*)>(dlsym(RTLD_DEFAULT, "dlsym"));
  CHECK(dlsym_by_name != nullptr);
  std::printf("dlsym by name finds printf: %d\n", dlsym_by_name(RTLD_DEFAULT, "printf") != nullptr);
#if defined(__x86_64__)
  std::printf("dlvsym finds printf: %d\n",
              dlvsym(RTLD_DEFAULT, "printf", "GLIBC_2.2.5") != nullptr);
#endif
  std::printf("function works: %d\n",
              reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "abs"))(-4));
  return 0;
}
