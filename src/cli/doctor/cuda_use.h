// SPDX-License-Identifier: Apache-2.0
// How a program and its libraries reach CUDA, read from their files.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cli/doctor/dependencies.h"

namespace cupool::cli {

/// A CUDA runtime in one of the files.
struct Runtime {
  bool is_static = false;
  std::string file;     ///< the shared library, or the file that contains a static runtime
  std::string version;  ///< "13.0", "13", or "" if unknown
};

struct CudaUse {
  std::vector<Runtime> runtimes;
  std::vector<std::string> linked_to_driver;  ///< files linked to libcuda.so
  std::vector<std::string> open_driver;       ///< files that name libcuda.so without linking it
  std::vector<std::string> open_runtime;      ///< files that name libcudart.so without linking it
  std::vector<std::string> agents;            ///< MPI, UCX and the like
  /// Why only NVIDIA's own runtime will do: "FILE contains NVIDIA's static runtime"; "" if another
  /// may.
  std::string needs_nvidia_runtime;
  /// The routes of docs/design.md by which cupool will intercept calls.
  std::set<int> routes;

  bool any() const { return !routes.empty(); }
};

/// Inspects the program and all libraries that will be loaded with it.
CudaUse find_cuda_use(const std::string& program, const std::vector<Dependency>& libraries);

/// A route in words.
const char* route_text(int route);

/// "13.0.96" of "libcudart.so.13.0.96", "13" of "libcudart.so.13", else "". Pure.
std::string library_version(const std::string& file_name);

}  // namespace cupool::cli
