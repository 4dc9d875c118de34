// Tells libraries by the name of the object that a return address lies in.
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

bool is_cuda_library(const void* address) {
  const char* name = object_of(address);
  for (const char* library : cuda_libraries) {
    if (std::strncmp(name, library, std::strlen(library)) == 0) return true;
  }
  return false;
}

}  // namespace cupool::entry
