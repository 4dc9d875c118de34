// SPDX-License-Identifier: Apache-2.0
// A static runtime is recognised by its symbols. In a stripped file three of its texts serve: the
// driver's file name, the name of a driver function, the name of an error.
#include "cli/doctor/cuda_use.h"

#include <climits>
#include <cstdlib>
#include <cstring>

#include "cli/doctor/elf_file.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

const char* const kAgents[] = {
#define CUPOOL_AGENT_LIBRARY(name) name,
#include "config/rdma_libraries.def"
};

// Skipped to save time: they contain no CUDA.
const char* const kSystemLibraries[] = {
    "libc.so",      "libm.so",     "libdl.so", "libpthread.so", "librt.so",  "libutil.so",
    "libstdc++.so", "libgcc_s.so", "ld-linux", "ld64.so",       "libz.so",   "libresolv.so",
    "libgomp.so",   "libnvidia-",  "libasan.", "libtsan.",      "libubsan.",
};

template <typename List>
bool begins_with_any(const std::string& text, const List& prefixes) {
  for (const char* prefix : prefixes) {
    if (util::starts_with(text, prefix)) return true;
  }
  return false;
}

std::string real_path(const std::string& path) {
  char buffer[PATH_MAX];
  return realpath(path.c_str(), buffer) != nullptr ? buffer : path;
}

bool needs(const ElfFile& elf, const char* library) {
  for (const std::string& name : elf.needed) {
    if (util::starts_with(name, library)) return true;
  }
  return false;
}

bool has_nvidia_static_symbols(const ElfFile& elf) {
  for (const ElfSymbol& symbol : elf.symbols) {
    if (symbol.defined && util::starts_with(symbol.name, "libcudart_static")) return true;
  }
  return false;
}

bool has_static_runtime_symbols(const ElfFile& elf) {
  return has_nvidia_static_symbols(elf) || elf.defines("cudaMalloc");
}

// `gpu_code`: the release of the compiler of the file's GPU code, which stripping does not remove.
void note_nvidia_runtime(const std::string& path, const ElfFile& elf, const std::string& gpu_code,
                         CudaUse* use) {
  if (!use->needs_nvidia_runtime.empty()) return;
  if (has_nvidia_static_symbols(elf)) {
    use->needs_nvidia_runtime = path + " contains NVIDIA's static runtime";
  } else if (elf.uses(kRegistersGpuCode) || !gpu_code.empty()) {
    use->needs_nvidia_runtime = path + " has GPU code of nvcc";
  }
}

void look_at_file(const std::string& path, CudaUse* use) {
  ElfFile elf;
  std::string reason;
  if (read_elf(path, &elf, &reason) != ElfStatus::read) return;
  const bool runtime_linked = needs(elf, "libcudart.so");
  const bool driver_linked = needs(elf, "libcuda.so");
  const std::vector<bool> texts =
      find_texts(path, {"libcuda.so", "cuGetProcAddress", "cudaErrorInvalidValue", "libcudart.so"});
  const bool runtime_texts = texts[0] && texts[1] && texts[2];
  const bool runtime_inside = has_static_runtime_symbols(elf) || (runtime_texts && !runtime_linked);
  const std::string gpu_code = runtime_inside ? gpu_compiler_release(path) : "";
  note_nvidia_runtime(path, elf, gpu_code, use);
  if (driver_linked) use->linked_to_driver.push_back(path);
  if (driver_linked) use->routes.insert(1);
  if (runtime_inside) {
    use->runtimes.push_back({true, path, gpu_code});
    use->routes.insert(3);
    return;
  }
  if (texts[3] && !runtime_linked) use->open_runtime.push_back(path);
  if (texts[3] && !runtime_linked) use->routes.insert(3);
  if (!texts[0] || driver_linked || runtime_linked) return;
  use->open_driver.push_back(path);
  use->routes.insert(2);
  if (texts[1]) use->routes.insert(3);
}

void look_at_runtime(const std::string& path, CudaUse* use) {
  const std::string version = library_version(util::base_name(real_path(path)));
  use->runtimes.push_back({false, path, version});
  use->routes.insert(3);
  // Older runtimes set the device lazily; cupool's short cut leaves them alone.
  constexpr int first_major = 12;
  if (version.empty() || std::atoi(version.c_str()) >= first_major) use->routes.insert(4);
}

}  // namespace

std::string library_version(const std::string& file_name) {
  const std::size_t at = file_name.find(".so.");
  return at == std::string::npos ? "" : file_name.substr(at + 4);
}

const char* route_text(int route) {
  switch (route) {
    case 1:
      return "linked to libcuda: cupool's cuMemAlloc comes first";
    case 2:
      return "dlsym for functions of libcuda: cupool's dlsym answers";
    case 3:
      return "cuGetProcAddress, which every CUDA runtime calls: cupool's answers";
    case 4:
      return "cudaMalloc of a shared CUDA runtime: cupool's comes first";
    default:
      return "?";
  }
}

CudaUse find_cuda_use(const std::string& program, const std::vector<Dependency>& libraries) {
  CudaUse use;
  look_at_file(program, &use);
  for (const Dependency& library : libraries) {
    if (begins_with_any(library.name, kAgents)) use.agents.push_back(library.name);
    if (library.path.empty() || begins_with_any(library.name, kSystemLibraries)) continue;
    if (util::starts_with(library.name, "libcuda.so")) continue;
    if (util::starts_with(library.name, "libcudart.so")) {
      look_at_runtime(library.path, &use);
    } else {
      look_at_file(library.path, &use);
    }
  }
  return use;
}

}  // namespace cupool::cli
