// SPDX-License-Identifier: Apache-2.0
// A program without CUDA that loads a plugin with RTLD_LOCAL, as Python loads its extensions. The
// plugin's calls find our exported cudaMalloc in the global scope, while the real one is only in
// the plugin's own scope. reload=1 unloads and loads it again: pointers kept from before are stale.
#include <dlfcn.h>

#include <string>

#include "probe.h"
#include "runtime_work.h"

#if defined(__SANITIZE_ADDRESS__)
// An unloaded libcudart leaves its state behind, which nothing points to any more.
// Visible: the sanitizer's library looks it up.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_leaks=0";
}
#endif

namespace {

WorkCounts run_plugin(const std::string& path, int iterations, bool close_after) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::_Exit(probe::kFailedCall);
  }
  const auto run = reinterpret_cast<WorkCounts (*)(int, int)>(dlsym(library, "plugin_run"));
  CHECK(run != nullptr);
  const WorkCounts counts = run(iterations, 0);
  if (close_after) dlclose(library);
  return counts;
}

}  // namespace

int main(int argc, char** argv) {
  const int iterations = static_cast<int>(probe::number(argc, argv, "iterations", 20));
  const bool reload = probe::number(argc, argv, "reload", 0) != 0;
  const std::string program = argv[0];
  const std::string folder = program.substr(0, program.rfind('/') + 1);
  WorkCounts total = run_plugin(folder + "libprobe_plugin.so", iterations, reload);
  if (reload) {
    total.add(run_plugin(folder + "libprobe_plugin.so", iterations, true));
  }
  std::printf("checksum=%" PRIu64 " wrong_bytes=%" PRIu64 "\n", total.checksum, total.wrong_bytes);
  probe::print_counts(total.mallocs, total.frees);
  return total.wrong_bytes == 0 ? 0 : probe::kWrongResult;
}
