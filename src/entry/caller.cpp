// SPDX-License-Identifier: Apache-2.0
// Identifies libraries by the file name of the object that contains a return address.
#include "entry/caller.h"

#include <dlfcn.h>

#include <cstring>

namespace cupool::entry {
namespace {

const char* const cuda_libraries[] = {
    "libcublas",    "libcublasLt", "libcudnn",    "libcudss",    "libcufft", "libcupti",
    "libcurand",    "libcusolver", "libcusparse", "libcutensor", "libnccl",  "libnpp",
    "libnvJitLink", "libnvjpeg",   "libnvrtc",    "libnvshmem",
};

}  // namespace

const char* object_of(const void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}

// By path and address: a library reloaded from the same file at the same address counts as the
// same.
std::uint64_t object_id(const void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return 0;
  constexpr std::uint64_t kPrime = 1099511628211u;  // FNV-1a
  std::uint64_t id = 14695981039346656037u ^ reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  for (const char* c = info.dli_fname; *c != '\0'; ++c) {
    id = (id ^ static_cast<unsigned char>(*c)) * kPrime;
  }
  return id == 0 ? 1 : id;
}

bool is_own_code(const void* address) {
  Dl_info info = {};
  Dl_info own = {};
  return dladdr(address, &info) != 0 &&
         dladdr(reinterpret_cast<const void*>(&is_own_code), &own) != 0 &&
         info.dli_fbase == own.dli_fbase;
}

bool is_cuda_library(const void* address) {
  const char* name = object_of(address);
  for (const char* library : cuda_libraries) {
    if (std::strncmp(name, library, std::strlen(library)) == 0) return true;
  }
  return false;
}

}  // namespace cupool::entry
