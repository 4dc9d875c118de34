// SPDX-License-Identifier: Apache-2.0
// A library that lets other hardware into device memory (its name is what counts) is loaded after
// the first allocations. Says what is plain memory and whether a free waits, before and after.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr size_t kBytes = 200000;

bool plain(const void* p) {
  unsigned int capable = 0;
  MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                             reinterpret_cast<CUdeviceptr>(p)));
  return capable != 0;
}

std::vector<void*> allocate(int count, size_t bytes) {
  std::vector<void*> blocks(static_cast<size_t>(count));
  for (void*& p : blocks) {
    MUST(cudaMalloc(&p, bytes));
    probe::own(p, bytes);
    MUST(cudaMemset(p, 0x4D, bytes));
  }
  return blocks;
}

// Whether all work was done when the free returned.
bool free_waits(void* p, size_t bytes, cudaStream_t stream) {
  MUST(cudaMemsetAsync(p, 1, bytes, stream));
  probe::disown(p, bytes);
  MUST(cudaFree(p));
  const bool waited = cudaStreamQuery(stream) == cudaSuccess;
  cudaGetLastError();
  MUST(cudaStreamSynchronize(stream));
  return waited;
}

void check_content(void* p, size_t bytes) {
  std::vector<unsigned char> host(bytes);
  MUST(cudaMemcpy(host.data(), p, bytes, cudaMemcpyDeviceToHost));
  CHECK(probe::count_other_bytes(host.data(), bytes, 0x4D) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1);
  const std::string library = probe::argument(argc, argv, "library", "agents/libmpi.so.40");
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<void*> early = allocate(10, kBytes);
  std::vector<void*> idle = allocate(10, kBytes);
  bool early_plain = false;
  for (void* p : early) early_plain = early_plain || plain(p);
  const bool waits_before = free_waits(idle.back(), kBytes, stream);
  idle.pop_back();
  for (void* p : idle) {
    probe::disown(p, kBytes);
    MUST(cudaFree(p));
  }
  std::printf("before: plain %d, free waits %d\n", early_plain, waits_before);

  CHECK(dlopen((folder + library).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
  // A size that does not lie ready: fresh memory, where the library is noticed.
  std::vector<void*> late = allocate(10, 5 * kBytes);
  std::vector<void*> same = allocate(10, kBytes);
  int late_plain = 0;
  for (void* p : late) late_plain += plain(p);
  for (void* p : same) late_plain += plain(p);
  for (void* p : early) check_content(p, kBytes);
  const bool waits_after = free_waits(late.back(), 5 * kBytes, stream);
  late.pop_back();
  // Of both kinds, mixed; blocks of before go back and do not come again.
  for (void* p : early) CHECK(free_waits(p, kBytes, stream) == waits_after);
  for (void* p : same) check_content(p, kBytes);
  std::vector<void*> again = allocate(10, kBytes);
  for (void* p : again) late_plain += plain(p);
  std::printf("after: plain %d of 30, free waits %d\n", late_plain, waits_after);
  for (const std::vector<void*>& blocks : {same, again}) {
    for (void* p : blocks) {
      probe::disown(p, kBytes);
      MUST(cudaFree(p));
    }
  }
  for (void* p : late) {
    probe::disown(p, 5 * kBytes);
    MUST(cudaFree(p));
  }
  return 0;
}
