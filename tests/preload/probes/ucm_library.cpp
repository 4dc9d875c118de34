// SPDX-License-Identifier: Apache-2.0
// Hooks memory functions of the driver as UCX's libucm_cuda does, whose name it has: it looks them
// up and writes a jump into what it finds, or has the program call it in their place. Tells which
// memory of the device is known.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>

namespace {

using Alloc = CUresult (*)(CUdeviceptr*, size_t);
using Free = CUresult (*)(CUdeviceptr);
using FreeAsync = CUresult (*)(CUdeviceptr, CUstream);

constexpr size_t kJumpBytes = 16;

// A function whose code jumps elsewhere, except while it is called from there: enough for a program
// with one thread.
struct Patched {
  unsigned char* function = nullptr;
  unsigned char original[kJumpBytes] = {};
  unsigned char jump[kJumpBytes] = {};

  void write(const unsigned char* code) const {
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(function) & ~(page - 1);
    const size_t bytes = reinterpret_cast<uintptr_t>(function) + kJumpBytes - begin;
    void* const place = reinterpret_cast<void*>(begin);
    mprotect(place, bytes, PROT_READ | PROT_WRITE | PROT_EXEC);
    std::memcpy(function, code, kJumpBytes);
    mprotect(place, bytes, PROT_READ | PROT_EXEC);
    __builtin___clear_cache(reinterpret_cast<char*>(function),
                            reinterpret_cast<char*>(function) + kJumpBytes);
  }

  void patch(void* found, void* target) {
    function = static_cast<unsigned char*>(found);
    std::memcpy(original, function, kJumpBytes);
#if defined(__x86_64__)
    const unsigned char load[] = {0x48, 0xB8};  // mov $target, %rax
    const unsigned char go[] = {0xFF, 0xE0};    // jmp *%rax
    std::memcpy(jump, load, 2);
    std::memcpy(jump + 2, &target, 8);
    std::memcpy(jump + 10, go, 2);
#else
    const uint32_t code[] = {0x58000050, 0xD61F0200};  // ldr x16, .+8; br x16
    std::memcpy(jump, code, 8);
    std::memcpy(jump + 8, &target, 8);
#endif
    write(jump);
  }
};

Patched alloc_code;
Patched free_code;
Patched free_async_code;
Alloc found_alloc = nullptr;
Free found_free = nullptr;
FreeAsync found_free_async = nullptr;
std::map<CUdeviceptr, size_t> known;

CUresult hooked_alloc(CUdeviceptr* address, size_t bytes) {
  if (alloc_code.function != nullptr) alloc_code.write(alloc_code.original);
  const CUresult result = found_alloc(address, bytes);
  if (alloc_code.function != nullptr) alloc_code.write(alloc_code.jump);
  if (result == CUDA_SUCCESS) known[*address] = bytes;
  return result;
}

// As UCX does, it asks for the extent while the memory still exists, and for what it is.
void forget(CUdeviceptr address) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUmemorytype type{};
  cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  if (cuMemGetAddressRange(&base, &bytes, address) == CUDA_SUCCESS) known.erase(base);
}

CUresult hooked_free(CUdeviceptr address) {
  forget(address);
  if (free_code.function != nullptr) free_code.write(free_code.original);
  const CUresult result = found_free(address);
  if (free_code.function != nullptr) free_code.write(free_code.jump);
  return result;
}

CUresult hooked_free_async(CUdeviceptr address, CUstream stream) {
  forget(address);
  free_async_code.write(free_async_code.original);
  const CUresult result = found_free_async(address, stream);
  free_async_code.write(free_async_code.jump);
  return result;
}

void* look_up(const char* symbol) {
  Dl_info own = {};
  dladdr(reinterpret_cast<void*>(&look_up), &own);
  void* const self = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  void* const found = dlsym(self, symbol);
  dlclose(self);
  return found;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void ucm_install(bool in_code) {
  found_alloc = reinterpret_cast<Alloc>(look_up("cuMemAlloc_v2"));
  if (in_code) {
    alloc_code.patch(reinterpret_cast<void*>(found_alloc), reinterpret_cast<void*>(&hooked_alloc));
  }
  found_free = reinterpret_cast<Free>(look_up("cuMemFree_v2"));
  if (in_code) {
    free_code.patch(reinterpret_cast<void*>(found_free), reinterpret_cast<void*>(&hooked_free));
    found_free_async = reinterpret_cast<FreeAsync>(look_up("cuMemFreeAsync"));
    free_async_code.patch(reinterpret_cast<void*>(found_free_async),
                          reinterpret_cast<void*>(&hooked_free_async));
  }
}

// What a program calls whose references were replaced.
__attribute__((visibility("default"))) CUresult ucm_alloc(CUdeviceptr* address, size_t bytes) {
  return hooked_alloc(address, bytes);
}
__attribute__((visibility("default"))) CUresult ucm_free(CUdeviceptr address) {
  return hooked_free(address);
}

__attribute__((visibility("default"))) bool ucm_knows(CUdeviceptr address) {
  const auto next = known.upper_bound(address);
  if (next == known.begin()) return false;
  const auto& [base, bytes] = *std::prev(next);
  return address < base + bytes;
}

__attribute__((visibility("default"))) size_t ucm_count() {
  return known.size();
}
}
