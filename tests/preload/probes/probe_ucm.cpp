// SPDX-License-Identifier: Apache-2.0
// A program that UCX hooks: by patched code (hooks=code), or by replaced references
// (hooks=references). Allocates and frees in rounds, half by the runtime, half by the driver, and
// says of which memory the hooks know. with=ucp: beside UCX's main library. registers=ucx: UCX's
// transport registers each block; registers=program: the program does the same itself.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr int kRounds = 4;
constexpr int kBlocks = 6;
constexpr size_t kBytes = 3 << 20;  // larger than what shares a chunk

struct Hooks {
  void (*install)(bool);
  CUresult (*alloc)(CUdeviceptr*, size_t);
  CUresult (*free)(CUdeviceptr);
  bool (*knows)(CUdeviceptr);
  size_t (*count)();
};

template <typename Function>
void find(void* library, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, symbol));
  CHECK(*function != nullptr);
}

void* open_beside(const std::string& program, const char* name) {
  void* const library =
      dlopen((program.substr(0, program.rfind('/')) + "/" + name).c_str(), RTLD_LAZY);
  CHECK(library != nullptr);
  return library;
}

Hooks load(const std::string& program) {
  void* const library = open_beside(program, "libucm_cuda.so.0");
  Hooks hooks{};
  find(library, "ucm_install", &hooks.install);
  find(library, "ucm_alloc", &hooks.alloc);
  find(library, "ucm_free", &hooks.free);
  find(library, "ucm_knows", &hooks.knows);
  find(library, "ucm_count", &hooks.count);
  return hooks;
}

using Register = CUresult (*)(CUdeviceptr);
CUresult register_here(CUdeviceptr address) {
  CUipcMemHandle handle;
  const unsigned int on = 1;
  const CUresult result = cuIpcGetMemHandle(&handle, address);
  if (result != CUDA_SUCCESS) return result;
  return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

Register registration(const std::string& by, const std::string& program) {
  Register function = nullptr;
  if (by == "program") return &register_here;
  if (by == "ucx") find(open_beside(program, "libuct_cuda.so.0"), "uct_register", &function);
  return function;
}

void* allocate(int number, const Hooks& hooks, bool by_hooks) {
  void* p = nullptr;
  CUdeviceptr address = 0;
  if (number % 2 == 0) {
    MUST(cudaMalloc(&p, kBytes));
  } else {
    MUST(by_hooks ? hooks.alloc(&address, kBytes) : cuMemAlloc(&address, kBytes));
    p = reinterpret_cast<void*>(address);
  }
  probe::own(p, kBytes);
  MUST(cudaMemset(p, number, kBytes));
  return p;
}

void release(int number, void* p, const Hooks& hooks, bool by_hooks) {
  std::vector<unsigned char> host(kBytes);
  MUST(cudaMemcpy(host.data(), p, kBytes, cudaMemcpyDeviceToHost));
  CHECK(probe::count_other_bytes(host.data(), kBytes, number) == 0);
  probe::disown(p, kBytes);
  const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(p);
  // Who got it may differ from who frees it.
  if (number % 3 == 0) {
    MUST(cudaFree(p));
  } else {
    MUST(by_hooks ? hooks.free(address) : cuMemFree(address));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool in_code =
      std::string(probe::argument(argc, argv, "hooks", "code")) == std::string("code");
  MUST(cudaSetDevice(0));
  MUST(cudaFree(nullptr));
  if (std::string(probe::argument(argc, argv, "with", "")) == "ucp") {
    open_beside(argv[0], "mpi/libucp.so.0");
  }
  const Hooks hooks = load(argv[0]);
  hooks.install(in_code);
  const Register registers = registration(probe::argument(argc, argv, "registers", ""), argv[0]);
  long known = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<void*> blocks;
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(allocate(i, hooks, !in_code));
    for (void* p : blocks) {
      if (registers != nullptr) MUST(registers(reinterpret_cast<CUdeviceptr>(p)));
    }
    for (void* p : blocks) known += hooks.knows(reinterpret_cast<CUdeviceptr>(p));
    for (int i = 0; i < kBlocks; ++i) release(i, blocks[static_cast<size_t>(i)], hooks, !in_code);
  }
  if (in_code) {
    probe::say("known of all", known);
    probe::say("known and gone", static_cast<long>(hooks.count()));
  }
  probe::print_counts(kRounds * kBlocks, kRounds * kBlocks);
  return 0;
}
