// SPDX-License-Identifier: Apache-2.0
// Plugins and the dynamic linker (contract 11). mode= unload (the plugin that allocated goes,
// others take over), cross (memory allocated in one plugin, freed in another; deep=1: the second is
// opened with RTLD_DEEPBIND), errors (what dlerror says of look-ups that fail), wrapped (whether
// another preload's dlsym sees look-ups). The arguments first= and second= name plugins: static,
// shared, driver.
#include <dlfcn.h>

#include <string>
#include <vector>

#include "life_plugin.h"
#include "probe.h"

#if defined(__SANITIZE_ADDRESS__)
// An unloaded libcudart leaves its state behind, which nothing points to any more.
// Visible: the sanitizer's library looks it up.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_leaks=0";
}
#endif

namespace {

std::string folder;

struct Loaded {
  void* library;
  const LifePlugin* plugin;
};

Loaded load(const std::string& kind, int flags) {
  void* library = dlopen((folder + "liblife_plugin_" + kind + ".so").c_str(), RTLD_NOW | flags);
  if (library == nullptr) std::printf("%s\n", dlerror());
  CHECK(library != nullptr);
  const auto* plugin = static_cast<const LifePlugin*>(dlsym(library, "life_plugin"));
  CHECK(plugin != nullptr);
  return {library, plugin};
}

void check_content(const LifePlugin& reader, std::uintptr_t block, size_t bytes, int value) {
  std::vector<unsigned char> host(bytes);
  MUST(reader.read(block, host.data(), bytes));
  CHECK(probe::count_other_bytes(host.data(), bytes, value) == 0);
}

// Live blocks never share a byte, whoever gave them out.
void check_apart(const std::vector<std::uintptr_t>& blocks, size_t bytes) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      CHECK(blocks[i] + bytes <= blocks[j] || blocks[j] + bytes <= blocks[i]);
    }
  }
}

// Each plugin allocates and is gone; the memory stays, and whoever comes next frees it.
// The driver is not to go with its only user: device memory would go with it.
void unload(const std::string& first, const std::string& second) {
  CHECK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr);
  std::vector<std::uintptr_t> left;
  const size_t bytes = 5000;
  for (int round = 0; round < 6; ++round) {
    const Loaded loaded = load(round % 2 == 0 ? first : second, RTLD_LOCAL);
    std::uintptr_t kept = 0;
    MUST(loaded.plugin->allocate(bytes, 10 + round, &kept));
    for (size_t i = 0; i < left.size(); ++i) {
      check_content(*loaded.plugin, left[i], bytes, 10 + static_cast<int>(i));
    }
    left.push_back(kept);
    check_apart(left, bytes);
    if (round == 5) {
      for (const std::uintptr_t block : left) MUST(loaded.plugin->release(block));
    }
    MUST(dlclose(loaded.library));
  }
  std::printf("kept %zu blocks\n", left.size());
}

// Allocated here, freed there, both ways, while other blocks live on.
void cross(const std::string& first, const std::string& second, bool deep) {
  const LifePlugin* plugins[2] = {
      load(first, RTLD_LOCAL).plugin,
      load(second, RTLD_LOCAL | (deep ? RTLD_DEEPBIND : 0)).plugin,
  };
  for (const size_t bytes : {size_t{700}, size_t{100'000}, size_t{5} << 20}) {
    std::vector<std::uintptr_t> live;
    for (int round = 0; round < 40; ++round) {
      // The pattern gives each side memory of its own kind, of the other's kind, and addresses
      // that the other side knew before.
      const LifePlugin& giver = *plugins[(round / 2) % 2];
      const LifePlugin& taker = *plugins[(round / 3) % 2];
      std::uintptr_t block = 0;
      MUST(giver.allocate(bytes, 1 + round, &block));
      live.push_back(block);
      check_apart(live, bytes);
      if (live.size() < 4) continue;
      const size_t victim = static_cast<size_t>(round) % live.size();
      MUST(taker.release(live[victim]));
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    for (size_t i = 0; i < live.size(); ++i) MUST(plugins[i % 2]->release(live[i]));
  }
  std::printf("crossed\n");
}

std::string error_after(void* found) {
  const char* message = dlerror();
  return std::string(found == nullptr ? "null" : "found") + ", " +
         (message == nullptr ? "no message" : message);
}

void print_errors(const std::string& first) {
  const Loaded loaded = load(first, RTLD_LOCAL);
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  CHECK(libc != nullptr);
  for (const char* name : {"cuMemAlloc_v2", "cudaMalloc", "cuMemAllocNever"}) {
    for (void* handle : {RTLD_DEFAULT, RTLD_NEXT, libc, loaded.library}) {
      dlerror();
      const std::string in_plugin = error_after(loaded.plugin->look_up(handle, name));
      std::printf("%s: %s\n", name, in_plugin.c_str());
    }
    // In the program itself, whose scope begins with us: at least nothing that names us.
    for (void* handle : {RTLD_DEFAULT, RTLD_NEXT, libc}) {
      dlerror();
      const std::string here = error_after(dlsym(handle, name));
      const bool names_us = here.find("cupool.so") != std::string::npos;
      std::printf("%s: %s%s\n", name, here.substr(0, 4).c_str(), names_us ? " names us" : "");
      CHECK(here.find("undefined symbol") != std::string::npos || here == "found, no message");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "unload");
  const std::string first = probe::argument(argc, argv, "first", "static");
  const std::string second = probe::argument(argc, argv, "second", first.c_str());
  const std::string program = argv[0];
  folder = program.substr(0, program.rfind('/') + 1);
  if (mode == "unload") unload(first, second);
  if (mode == "cross") cross(first, second, probe::number(argc, argv, "deep", 0) != 0);
  if (mode == "errors") print_errors(first);
  if (mode == "wrapped") {
    const bool seen = dlsym(RTLD_DEFAULT, "life_wrapper_mark") != nullptr;
    std::printf("%s\n", seen ? "seen" : "not seen");
  }
  return 0;
}
