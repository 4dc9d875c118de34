// How a program and the libraries that it links reach CUDA, read from their files.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cli/dependencies.h"

namespace cupool::cli {

/// A CUDA runtime in one of the files.
struct Runtime {
  bool is_static = false;
  std::string file;     ///< the library itself, or the file that a static one is part of
  std::string version;  ///< "13.0", "13" or, if it is not to be seen, ""
};

struct CudaUse {
  std::vector<Runtime> runtimes;
  std::vector<std::string> linked_to_driver;  ///< files that need libcuda.so
  std::vector<std::string> open_driver;       ///< files that name libcuda.so and link neither
  std::vector<std::string> open_runtime;      ///< files that name libcudart.so and do not link it
  std::vector<std::string> agents;            ///< MPI, UCX and the like
  /// The ways of docs/design.md by which calls will be caught, by number.
  std::set<int> routes;

  bool any() const { return !routes.empty(); }
};

/// Looks at the program and all libraries that it will be loaded with.
CudaUse find_cuda_use(const std::string& program, const std::vector<Dependency>& libraries);

/// What a route is, in words.
const char* route_text(int route);

/// "13.0.96" of "libcudart.so.13.0.96", "13" of "libcudart.so.13", else "". Pure.
std::string library_version(const std::string& file_name);

}  // namespace cupool::cli
