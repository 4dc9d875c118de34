// SPDX-License-Identifier: Apache-2.0
// Two devices: copies without peer access, kernels with it, frees from elsewhere (contract 7).
//   peers copies | kernels | driver      each kind of copy or access, both ways, checked by the GPU
//   peers stress [limit_ms=N]            both copy to each other while they allocate and free
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <thread>

#include "common/kernels.cuh"
#include "driver_kernels.h"

namespace {

using contract::fact;
using contract::kMiB;
using contract::verdict;

constexpr size_t kSizes[] = {4, 1020, 65536, kMiB + 4, 16 * kMiB, 256 * kMiB};

// A counter of wrong words on each device, never freed before the end.
uint64_t* wrong[2] = {};

void* allocate(int device, size_t bytes) {
  void* block = nullptr;
  MUST(cudaSetDevice(device));
  MUST(cudaMalloc(&block, bytes));
  return block;
}

void make_counter(int device) {
  wrong[device] = static_cast<uint64_t*>(allocate(device, sizeof(uint64_t)));
  MUST(cudaMemset(wrong[device], 0, sizeof(uint64_t)));
}

// By a kernel of `device`, which need not own the memory; returns its errors.
int stamp(int device, void* block, size_t bytes, uint32_t value) {
  MUST(cudaSetDevice(device));
  stamp_u32<<<64, 256>>>(static_cast<uint32_t*>(block), bytes / 4, value);
  const int code = cudaGetLastError();
  return code != 0 ? code : static_cast<int>(cudaDeviceSynchronize());
}

// Words of `block` that are not `value`, or -1 for an error.
int64_t mismatches(int device, const void* block, size_t bytes, uint32_t value) {
  MUST(cudaSetDevice(device));
  MUST(cudaMemset(wrong[device], 0, sizeof(uint64_t)));
  check_u32<<<64, 256>>>(static_cast<const uint32_t*>(block), bytes / 4, value, wrong[device]);
  if (cudaGetLastError() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return -1;
  uint64_t count = 0;
  MUST(cudaMemcpy(&count, wrong[device], sizeof count, cudaMemcpyDeviceToHost));
  return static_cast<int64_t>(count);
}

int copy_peer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  return cudaMemcpyPeer(to, to_device, from, from_device, bytes);
}

int copy_peer_async(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  const int code = cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr);
  return code != 0 ? code : static_cast<int>(cudaStreamSynchronize(nullptr));
}

int copy_default(void* to, int, const void* from, int, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}

int copy_3d(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  const size_t width = bytes % 4096 == 0 ? 4096 : bytes;
  cudaMemcpy3DPeerParms copy = {};
  copy.srcDevice = from_device;
  copy.dstDevice = to_device;
  copy.srcPtr = make_cudaPitchedPtr(const_cast<void*>(from), width, width, bytes / width);
  copy.dstPtr = make_cudaPitchedPtr(to, width, width, bytes / width);
  copy.extent = make_cudaExtent(width, bytes / width, 1);
  const int code = cudaMemcpy3DPeer(&copy);
  return code != 0 ? code : static_cast<int>(cudaDeviceSynchronize());
}

const struct {
  const char* name;
  int (*copy)(void*, int, const void*, int, size_t);
} kCopies[] = {{"cudaMemcpyPeer", copy_peer},
               {"cudaMemcpyPeerAsync", copy_peer_async},
               {"cudaMemcpy", copy_default},
               {"cudaMemcpy3DPeer", copy_3d}};

struct Set {
  std::vector<void*> blocks[2];
};

void add_blocks(Set* set, int device) {
  for (const size_t bytes : kSizes) set->blocks[device].push_back(allocate(device, bytes));
}

void release(Set* set) {
  for (int device = 0; device < 2; ++device) {
    MUST(cudaSetDevice(device));
    for (void* block : set->blocks[device]) MUST(cudaFree(block));
    set->blocks[device].clear();
  }
}

void copy_all(const Set& set, const char* which) {
  uint32_t value = 0xC0DE0000u;
  for (const auto& kind : kCopies) {
    for (int from = 0; from < 2; ++from) {
      const int to = 1 - from;
      for (size_t i = 0; i < std::size(kSizes); ++i) {
        void* source = set.blocks[from][i];
        void* destination = set.blocks[to][i];
        // The current device is the source's in one half and the destination's in the other.
        MUST(stamp(to, destination, kSizes[i], 0xDEADu));
        MUST(stamp(from, source, kSizes[i], ++value));
        MUST(cudaSetDevice(i % 2 == 0 ? from : to));
        const int code = kind.copy(destination, to, source, from, kSizes[i]);
        for (int device = 0; device < 2; ++device) {
          MUST(cudaSetDevice(device));
          MUST(cudaDeviceSynchronize());
        }
        const int64_t count = mismatches(to, destination, kSizes[i], value);
        char name[160];
        std::snprintf(name, sizeof name, "%s %d to %d, %zu bytes, %s: answer %d, %lld wrong words",
                      kind.name, from, to, kSizes[i], which, code, static_cast<long long>(count));
        if (!verdict(code == 0 && count == 0, name)) cudaGetLastError();
      }
    }
  }
}

void copies() {
  Set early;
  make_counter(0);
  add_blocks(&early, 0);  // before the second device is used at all
  make_counter(1);
  add_blocks(&early, 1);
  copy_all(early, "early blocks");
  Set late;
  add_blocks(&late, 0);
  add_blocks(&late, 1);
  release(&early);
  copy_all(late, "late blocks");
  release(&late);
  add_blocks(&early, 1);  // what was freed, served again
  add_blocks(&early, 0);
  copy_all(early, "blocks served again");
  release(&early);
}

void access_all(const Set& set, const char* which) {
  uint32_t value = 0xACCE0000u;
  for (int owner = 0; owner < 2; ++owner) {
    const int other = 1 - owner;
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      void* block = set.blocks[owner][i];
      const int wrote = stamp(other, block, kSizes[i], ++value);
      const int64_t owner_sees = mismatches(owner, block, kSizes[i], value);
      MUST(stamp(owner, block, kSizes[i], ++value));
      const int64_t other_sees = mismatches(other, block, kSizes[i], value);
      char name[160];
      std::snprintf(name, sizeof name,
                    "kernels of %d in memory of %d, %zu bytes, %s: %d, wrong %lld and %lld", other,
                    owner, kSizes[i], which, wrote, static_cast<long long>(owner_sees),
                    static_cast<long long>(other_sees));
      verdict(wrote == 0 && owner_sees == 0 && other_sees == 0, name);
      if (!contract::all_right) return;  // the error is sticky
    }
  }
}

void kernels() {
  Set before;
  for (int device = 0; device < 2; ++device) {
    make_counter(device);
    add_blocks(&before, device);
  }
  for (int device = 0; device < 2; ++device) {
    MUST(cudaSetDevice(device));
    MUST(cudaDeviceEnablePeerAccess(1 - device, 0));
  }
  access_all(before, "made before access was enabled");
  Set after;
  add_blocks(&after, 1);
  add_blocks(&after, 0);
  access_all(after, "made after it");
  copy_all(after, "access enabled");
  for (int device = 0; device < 2; ++device) {
    MUST(cudaSetDevice(device));
    MUST(cudaDeviceDisablePeerAccess(1 - device));
  }
  copy_all(before, "access disabled again");
  for (int device = 0; device < 2; ++device) {
    MUST(cudaSetDevice(device));
    MUST(cudaDeviceEnablePeerAccess(1 - device, 0));
  }
  access_all(before, "enabled a second time");
  release(&after);
  // Frees with the other device current, then with no context at all.
  int foreign = 0;
  for (int device = 0; device < 2; ++device) {
    MUST(cudaSetDevice(1 - device));
    for (void* block : before.blocks[device]) foreign += cudaFree(block) != cudaSuccess;
    before.blocks[device].clear();
  }
  verdict(foreign == 0, "cudaFree of the other device's memory");
  add_blocks(&before, 0);
  add_blocks(&before, 1);
  access_all(before, "served again after frees from the other device");
  int nowhere = 0;
  MUST(cuCtxSetCurrent(nullptr));
  for (int device = 0; device < 2; ++device) {
    for (void* block : before.blocks[device]) {
      nowhere += cuMemFree(reinterpret_cast<CUdeviceptr>(block)) != CUDA_SUCCESS;
    }
    before.blocks[device].clear();
  }
  verdict(nowhere == 0, "cuMemFree without a current context");
  add_blocks(&before, 0);
  add_blocks(&before, 1);
  access_all(before, "served again after frees without a context");
  copy_all(before, "served again after frees without a context");
  release(&before);
}

// Contexts of the program's own, one for each device.
struct Own {
  CUcontext context = nullptr;
  contract::DriverKernels kernels;
  CUdeviceptr counter = 0;
  std::vector<CUdeviceptr> blocks;

  void allocate() {
    MUST(cuCtxSetCurrent(context));
    for (const size_t bytes : kSizes) {
      blocks.push_back(0);
      MUST(cuMemAlloc(&blocks.back(), bytes));
    }
  }

  int stamp(CUdeviceptr block, size_t bytes, uint32_t value) const {
    MUST(cuCtxSetCurrent(context));
    const int code = kernels.stamp(block, bytes / 4, value);
    return code != 0 ? code : static_cast<int>(cuCtxSynchronize());
  }

  int64_t mismatches(CUdeviceptr block, size_t bytes, uint32_t value) const {
    uint64_t count = 0;
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemsetD8(counter, 0, sizeof count));
    if (kernels.check(block, bytes / 4, value, counter) != 0 || cuCtxSynchronize() != 0) return -1;
    MUST(cuMemcpyDtoH(&count, counter, sizeof count));
    return static_cast<int64_t>(count);
  }
};

void driver_copies(const Own* own, const char* which) {
  uint32_t value = 0xD0D00000u;
  for (int from = 0; from < 2; ++from) {
    const int to = 1 - from;
    for (const bool async : {false, true}) {
      for (size_t i = 0; i < std::size(kSizes); ++i) {
        MUST(own[to].stamp(own[to].blocks[i], kSizes[i], 0xDEADu));
        MUST(own[from].stamp(own[from].blocks[i], kSizes[i], ++value));
        int code = async
                       ? cuMemcpyPeerAsync(own[to].blocks[i], own[to].context, own[from].blocks[i],
                                           own[from].context, kSizes[i], nullptr)
                       : cuMemcpyPeer(own[to].blocks[i], own[to].context, own[from].blocks[i],
                                      own[from].context, kSizes[i]);
        if (code == 0) code = cuCtxSynchronize();
        const int64_t count = own[to].mismatches(own[to].blocks[i], kSizes[i], value);
        char name[160];
        std::snprintf(name, sizeof name,
                      "cuMemcpyPeer%s %d to %d, %zu bytes, %s: answer %d, %lld wrong words",
                      async ? "Async" : "", from, to, kSizes[i], which, code,
                      static_cast<long long>(count));
        verdict(code == 0 && count == 0, name);
      }
    }
  }
}

void driver_accesses(const Own* own, const char* which) {
  uint32_t value = 0xE0E00000u;
  for (int owner = 0; owner < 2; ++owner) {
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      const CUdeviceptr block = own[owner].blocks[i];
      const int wrote = own[1 - owner].stamp(block, kSizes[i], ++value);
      const int64_t count = own[owner].mismatches(block, kSizes[i], value);
      verdict(wrote == 0 && count == 0, "own contexts, kernel of " + std::to_string(1 - owner) +
                                            " writes " + std::to_string(kSizes[i]) + " bytes, " +
                                            which);
      if (!contract::all_right) return;
    }
  }
}

void driver() {
  Own own[2];
  MUST(cuInit(0));
  for (int device = 0; device < 2; ++device) {
    own[device].context = contract::create_context(device);
    own[device].kernels.load();
    MUST(cuMemAlloc(&own[device].counter, sizeof(uint64_t)));
    own[device].allocate();
  }
  driver_copies(own, "no access enabled");
  for (int device = 0; device < 2; ++device) {
    MUST(cuCtxSetCurrent(own[device].context));
    MUST(cuCtxEnablePeerAccess(own[1 - device].context, 0));
  }
  driver_accesses(own, "made before access was enabled");
  int failed = 0;
  for (int device = 0; device < 2; ++device) {
    MUST(cuCtxSetCurrent(device == 0 ? nullptr : own[0].context));
    for (const CUdeviceptr block : own[device].blocks) failed += cuMemFree(block) != CUDA_SUCCESS;
    own[device].blocks.clear();
  }
  verdict(failed == 0, "own contexts, free without a context, and in the other one");
  own[1].allocate();
  own[0].allocate();
  driver_accesses(own, "made after it");
  driver_copies(own, "access enabled");
  for (int device = 0; device < 2; ++device) MUST(cuCtxDestroy(own[device].context));
  verdict(true, "own contexts, destroyed with live blocks");
}

struct Tally {
  uint64_t copies = 0;
  uint64_t words = 0;
  int64_t foreign = 0;
};

// Copies from `device` to the other one, each from a fresh block into a fresh block; frees both
// with the copy and the check pending (contract 2 across devices).
void stress_thread(int device, double limit, long iterations, Tally* tally) {
  const int other = 1 - device;
  cudaStream_t streams[2] = {};
  cudaEvent_t copied = nullptr;
  for (int i = 0; i < 2; ++i) {
    MUST(cudaSetDevice(i));
    MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  }
  uint64_t* counter = static_cast<uint64_t*>(allocate(other, sizeof(uint64_t)));
  MUST(cudaMemset(counter, 0, sizeof(uint64_t)));
  MUST(cudaDeviceSynchronize());
  MUST(cudaSetDevice(device));
  MUST(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
  contract::Random random(static_cast<uint64_t>(device) + 11);
  const auto begin = gpu_test::Clock::now();
  for (long i = 0; i < iterations && gpu_test::seconds_since(begin) < limit; ++i) {
    const uint64_t words =
        1 + random.below(uint64_t{1} << (2 + random.below(i % 64 == 0 ? 23 : 18)));
    const uint32_t value = (device == 0 ? 0x10000000u : 0x20000000u) + static_cast<uint32_t>(i);
    uint32_t* to = static_cast<uint32_t*>(allocate(other, words * 4));
    uint32_t* from = static_cast<uint32_t*>(allocate(device, words * 4));
    stamp_u32<<<32, 256, 0, streams[device]>>>(from, words, value);
    MUST(cudaGetLastError());
    MUST(cudaMemcpyPeerAsync(to, other, from, device, words * 4, streams[device]));
    MUST(cudaEventRecord(copied, streams[device]));
    MUST(cudaSetDevice(other));
    MUST(cudaStreamWaitEvent(streams[other], copied, 0));
    check_u32<<<32, 256, 0, streams[other]>>>(to, words, value, counter);
    stamp_u32<<<32, 256, 0, streams[other]>>>(to, words, 0xDEADBEEFu);
    MUST(cudaGetLastError());
    if (i % 3 == 0) {
      // With the other device current: only when nothing is pending, the driver promises no more.
      MUST(cudaStreamSynchronize(streams[other]));
      MUST(cudaFree(from));
      MUST(cudaSetDevice(device));
      MUST(cudaFree(to));
    } else {
      MUST(cudaFree(to));
      MUST(cudaSetDevice(device));
      MUST(cudaFree(from));
    }
    ++tally->copies;
    tally->words += words;
  }
  MUST(cudaSetDevice(other));
  MUST(cudaStreamSynchronize(streams[other]));
  MUST(cudaMemcpy(&tally->foreign, counter, sizeof(uint64_t), cudaMemcpyDeviceToHost));
}

void stress(int argc, char** argv) {
  const double limit = gpu_test::number(argc, argv, "limit_ms", 8000) / 1e3;
  const long iterations = gpu_test::number(argc, argv, "iterations", 20000);
  Tally tallies[2];
  std::thread second(stress_thread, 1, limit, iterations, &tallies[1]);
  stress_thread(0, limit, iterations, &tallies[0]);
  second.join();
  for (int i = 0; i < 2; ++i) {
    fact("copies_from_%d=%llu", i, static_cast<unsigned long long>(tallies[i].copies));
    fact("words_from_%d=%llu", i, static_cast<unsigned long long>(tallies[i].words));
    verdict(tallies[i].foreign == 0 && tallies[i].copies > 0,
            "stress from " + std::to_string(i) + ": " + std::to_string(tallies[i].foreign) +
                " wrong words");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (contract::asked(argc, argv, "driver")) {
    driver();
    return contract::exit_code();
  }
  // Asked before any context is there, so that `copies` meets a second device never used.
  int devices = 0;
  int reachable[2] = {};
  MUST(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    std::fprintf(stderr, "two devices are needed\n");
    return 2;
  }
  MUST(cudaDeviceCanAccessPeer(&reachable[0], 0, 1));
  MUST(cudaDeviceCanAccessPeer(&reachable[1], 1, 0));
  fact("peers=%d", reachable[0] && reachable[1]);
  if (contract::asked(argc, argv, "copies")) {
    copies();
  } else if (contract::asked(argc, argv, "kernels")) {
    if (reachable[0] && reachable[1]) kernels();
  } else if (contract::asked(argc, argv, "stress")) {
    stress(argc, argv);
  } else {
    return 2;
  }
  return contract::exit_code();
}
